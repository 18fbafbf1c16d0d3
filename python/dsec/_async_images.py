"""The async face of the catalogue. `_sync_images.py` is made of this file by `python/sync_face.py`: change this one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import List, Literal, Union

from . import _client, _options, _results
from ._awaiting import run
from ._client import Client
from ._options import Duration, Layers, Size
from ._results import BuildReport, EnvironmentInfo, ImageInfo, LayerKind, PublishReport

LocalPath = Union[str, "os.PathLike[str]"]


class AsyncImages:
    """The catalogue. `reference` is "name", "name:version" or a digest."""

    def __init__(self, client: Client | None = None) -> None:
        self._native = _client.native(client).images()

    async def list(self) -> list[ImageInfo]:
        return _results.image_infos(await run(self._native.list()))

    async def inspect(self, reference: str) -> ImageInfo:
        """Raises `NotFound`."""
        return _results.image_info(json.loads(await run(self._native.inspect(reference))))

    async def remove(self, reference: str) -> None:
        """Raises `NotFound`; `Conflict` while a sandbox lives on it."""
        await run(self._native.remove(reference))

    async def build(
        self,
        context: LocalPath,
        *,
        tag: str | None = None,
        dockerfile: LocalPath | None = None,
        arguments: Mapping[str, str] | None = None,
        network: Literal["none", "egress"] = "none",
        memory: Size | None = None,
        cpu: float | None = None,
        disk: Size | None = None,
        timeout: Duration | None = None,
        skip: Layers = (),
        exclude: Layers = (),
        shell_history: bool = False,
        caches: bool = False,
        no_cache: bool = False,
    ) -> BuildReport:
        """An image of a Dockerfile, each step in a sandbox. `context` is the directory that COPY takes from, `tag` the
        image's "name" or "name:version", `arguments` the values of ARGs, `skip` instructions to leave out ("CMD").

        `memory`, `cpu` and `disk` bound each step, `timeout` each RUN; `exclude`, `shell_history` and `caches` are left out
        of every layer, as of `pack_diff`. Raises `InvalidArgument` and `Unsupported` with the line, before anything runs;
        `InvalidArgument` with the end of its output for a RUN that fails. Cancelled, it stops its sandbox.
        """
        options = _options.build_options(
            tag=tag,
            dockerfile=dockerfile,
            arguments=arguments,
            network=network,
            memory=memory,
            cpu=cpu,
            disk=disk,
            timeout=timeout,
            skip=skip,
            exclude=exclude,
            shell_history=shell_history,
            caches=caches,
            no_cache=no_cache,
        )
        return _results.build_report(json.loads(await run(self._native.build(context, options))))

    async def tag(self, reference: str, name: str, *, version: str = "latest") -> ImageInfo:
        """Another name for the same layers; what has that name loses it. Raises `NotFound`."""
        request = json.dumps({"name": name, "version": version})
        return _results.image_info(json.loads(await run(self._native.tag(reference, request))))

    async def prune(self) -> List[ImageInfo]:
        """Removes what builds have cached, and gives it."""
        return _results.image_infos(await run(self._native.prune()))

    async def import_path(
        self,
        name: str,
        path: LocalPath,
        *,
        kind: LayerKind = "base",
        version: str = "latest",
        prefix: str | None = None,
        owner: str | None = None,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ImageInfo:
        """A directory, a tar (plain, gzip, zstd), `docker save` or an OCI archive becomes a layer.

        `prefix` puts the tree under a directory of the sandbox, `owner` ("uid:gid") gives every file to one user;
        `user`, `workdir` and `env` are the defaults of a base that brings none.
        """
        query = _options.import_query(
            name, kind=kind, version=version, prefix=prefix, owner=owner, user=user, workdir=workdir, env=env
        )
        return _results.image_info(json.loads(await run(self._native.import_path(path, query))))

    async def pull(
        self,
        reference: str,
        *,
        name: str | None = None,
        version: str | None = None,
        kind: LayerKind = "base",
        platform: str | None = None,
        credentials: tuple[str, str] | None = None,
        plain_http: bool = False,
    ) -> ImageInfo:
        """An image of an OCI registry ("registry.example.org/team/app:1.2") comes to the node, which fetches what it has not yet.

        `name` and `version` are what it is called here: else the last part of the repository, and the tag.
        `credentials` is a user name and a password or token. Raises `Unauthenticated`, `NotFound`, `Unreachable`.
        """
        request = _options.pull_request(
            reference,
            name=name,
            version=version,
            kind=kind,
            platform=platform,
            credentials=credentials,
            plain_http=plain_http,
        )
        return _results.image_info(json.loads(await run(self._native.pull(request))))

    async def merge(self, reference: str, version: str, *, threshold: Size | None = None) -> ImageInfo:
        """A new version of an image: the same content in fewer layers, neighbours of at most `threshold` together (3 GiB).

        Raises `AlreadyExists`; `InvalidArgument` where no two neighbours are small enough.
        """
        request = _options.merge_request(version, threshold)
        return _results.image_info(json.loads(await run(self._native.merge(reference, request))))

    async def export(
        self, reference: str, path: LocalPath, *, format: Literal["oci", "docker", "tar"] = "oci"
    ) -> int:
        """The image as an archive in a file, which appears when it is whole. Returns its bytes."""
        return int(await run(self._native.export(reference, json.dumps(format), path)))

    async def publish(self, reference: str) -> PublishReport:
        """Sends an image to the store that nodes share; what is there already is not sent again.

        Raises `Unsupported` where the node has no store, `NoCapacity` where the store cannot be reached.
        """
        return _results.publish_report(json.loads(await run(self._native.publish(reference))))

    async def list_store(self) -> List[ImageInfo]:
        """What the store has."""
        return _results.image_infos(await run(self._native.list_store()))


class AsyncEnvironments:
    """Named compositions of a base, workspaces and toolkits. `reference` is "name" or "name:version"; it works wherever
    an image is asked for."""

    def __init__(self, client: Client | None = None) -> None:
        self._native = _client.native(client).environments()

    async def create(
        self,
        name: str,
        image: str,
        *,
        version: str = "latest",
        workspaces: Layers = (),
        toolkits: Layers = (),
        follow: LayerKind | Sequence[LayerKind] = (),
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
    ) -> EnvironmentInfo:
        """Images are taken as they are now, and stay that whatever their names mean later; those of a kind in `follow`
        mean what their name means when a sandbox is created.

        The same again is answered as if it were new. Raises `NotFound`; `AlreadyExists` where the name and version mean
        something else: take another version.
        """
        request = _options.environment_request(
            name,
            image,
            version=version,
            workspaces=workspaces,
            toolkits=toolkits,
            follow=follow,
            env=env,
            user=user,
            workdir=workdir,
        )
        return _results.environment_info(json.loads(await run(self._native.create(request))))

    async def list(self) -> list[EnvironmentInfo]:
        return _results.environment_infos(await run(self._native.list()))

    async def inspect(self, reference: str) -> EnvironmentInfo:
        """Raises `NotFound`."""
        return _results.environment_info(json.loads(await run(self._native.inspect(reference))))

    async def remove(self, reference: str) -> None:
        """Its images stay. Raises `NotFound`; `Conflict` while a sandbox lives on it."""
        await run(self._native.remove(reference))
