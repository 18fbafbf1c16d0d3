"""The environment of Harbor: `harbor run -p TASK -a oracle -e dsec.harbor:DsecEnvironment`. See docs/harbor.md.

A trial has a sandbox, and a separate verifier one of its own. Like the other adapters this is a translation, over the
public face of `dsec` alone. Files are moved as root, as Harbor's own providers do, and are readable for all inside.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.options import EnvironmentOptions
from pydantic import Field, field_validator

import dsec

from . import _harness

__all__ = ["DsecEnvironment", "DsecOptions"]

OUTPUT_BYTES_MAX = 64 << 20
"""The most that a node returns of one stream; of more it is the head and the tail."""
OWNED_DIRECTORY = '[ -d "$1" ] || { mkdir -p -- "$1" && chown -- "$2" "$1"; }'


class DsecOptions(EnvironmentOptions):
    """What `--ek KEY=VALUE` takes."""

    image: str | None = Field(default=None, description="The image, instead of the task's docker_image.")
    workspaces: list[str] = Field(default=[], description="Workspace layers, separated by commas.")
    toolkits: list[str] = Field(default=[], description="Toolkit layers, separated by commas.")
    ttl: float = Field(default=_harness.TTL_SECONDS_DEFAULT, gt=0, description="Seconds after which it ends anyway.")

    @field_validator("workspaces", "toolkits", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return [one for one in value.split(",") if one] if isinstance(value, str) else value


class DsecEnvironment(BaseEnvironment):
    """One sandbox of a trial."""

    options_model = DsecOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._running: dsec.AsyncSandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "dsec"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        super().preflight(kwargs)
        try:
            dsec.Images().list()
        except dsec.Error as e:
            raise SystemExit(f"The DSec node: {e}. Does it run? `dsec up` starts one.") from e

    @property
    def sandbox(self) -> dsec.AsyncSandbox:
        if self._running is None:
            raise RuntimeError("The sandbox does not run: call start() first.")
        return self._running

    def _image(self) -> str:
        """As the task names it; the slashes of a registry's name are no part of ours."""
        assert isinstance(self.options, DsecOptions)
        named = self.options.image or self.task_env_config.docker_image
        if not named:
            raise ValueError(
                "DSec builds no Dockerfile: import the image (`dsec image import NAME FILE`) and name it, "
                "as docker_image in the task's [environment] or by --ek image=NAME."
            )
        return named.replace("/", ".")

    def _validate_definition(self) -> None:
        self._image()
        compose = [one.name for one in self.environment_dir.glob("docker-compose.y*ml")]
        if compose:
            raise ValueError(f"DSec runs one sandbox for a trial, not the services of {compose[0]}.")
        if self._host_mounts:
            raise ValueError("DSec mounts nothing of this machine into a sandbox.")

    async def start(self, force_build: bool) -> None:
        assert isinstance(self.options, DsecOptions)
        config = self.task_env_config
        megabytes = self._effective_memory_mb, self._effective_storage_mb
        memory, disk = (None if size is None else size << 20 for size in megabytes)
        self._running = await _harness.create(
            self._image(),
            workspaces=self.options.workspaces,
            toolkits=self.options.toolkits,
            labels=_harness.labels("harbor", task=self.environment_name, session=self.session_id),
            env=self._startup_env(),
            memory=memory,
            cpu=self._effective_cpus,
            disk=disk,
            ttl=self.options.ttl,
            network="none" if self._network_disabled else "egress",
        )
        try:
            if config.workdir:
                await self._as_root(["sh", "-c", OWNED_DIRECTORY, "sh", config.workdir, await self._uid()])
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Without `delete` it lives on, for its TTL."""
        if self._running is None:
            return
        sandbox, self._running = self._running, None
        if not delete:
            self.logger.info(f"the sandbox {sandbox.id} goes on: dsec exec -it {sandbox.id} -- bash")
            return
        try:
            await sandbox.stop()
        except dsec.NotFound:
            self.logger.debug(f"the sandbox {sandbox.id} had ended before")

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        user = self._resolve_user(user)
        result = await _harness.exec(
            self.sandbox,
            ["bash", "-c", command],
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(env),
            user=None if user is None else str(user),
            timeout=timeout_sec or None,
            max_output=OUTPUT_BYTES_MAX,
        )
        if result.reason == "sandbox_gone":
            raise RuntimeError(f"The sandbox {self.sandbox.id} ended while the command ran.")
        if result.timed_out:
            # As Harbor's Docker environment says it.
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def _upload_environment_dir_after_start(self) -> None:
        """The task's own files belong to those who work with them."""
        await super()._upload_environment_dir_after_start()
        workdir = self.task_env_config.workdir or "."
        names = [one.name for one in self.environment_dir.iterdir()] if self.environment_dir.is_dir() else []
        there = [path for name in names if await self.sandbox.files.exists(path := f"{workdir}/{name}")]
        if there:
            await self._as_root(["chown", "-R", "--", await self._uid(), *there])

    async def _uid(self) -> str:
        """Of the image's user."""
        return (await self.sandbox.exec(["id", "-u"])).check().stdout.strip()

    async def _as_root(self, command: list[str]) -> None:
        (await self.sandbox.exec(command, user="root")).check()

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        mode = os.stat(source_path).st_mode & 0o777 | 0o444
        await self.sandbox.files.as_user("root").upload(source_path, target_path, mode=mode)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.sandbox.files.as_user("root").upload_dir(source_dir, target_dir)
        # A temporary directory of the host is for its owner alone; the task's user must see what is in it.
        await self._as_root(["chmod", "-R", "a+rX", "--", target_dir])

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await self.sandbox.files.as_user("root").download(str(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self.sandbox.files.as_user("root").download_dir(str(source_dir), target_dir)
