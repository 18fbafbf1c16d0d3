"""The async face of a sandbox's disk. `_sync_disk.py` is made of this file by `python/sync_face.py`: change this one.

Apart from `_async.py` for its length alone; the batch is here because `fork` gives one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Generic, List, Literal, TypeVar

from . import _dsec, _options, _results
from ._awaiting import run
from ._options import Duration, Layers
from ._results import Checkpoint, PackReport, SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    # Python 3.10 has it not; annotations are never evaluated.
    from typing_extensions import Self

S = TypeVar("S", bound="AsyncDisk")


class AsyncDisk:
    """The disk at one instant. Processes are no part of it. With `scratch="memory"` there is none: `Unsupported`."""

    def __init__(self, native: _dsec.Sandbox) -> None:
        """Use `create` or `connect`."""
        self._native = native

    async def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keeps the disk as it is now. Without a `name` one is made up. Raises `AlreadyExists`; `QuotaExceeded` where
        there are 8."""
        return _results.checkpoint(json.loads(await run(self._native.checkpoint(name))))

    async def checkpoints(self) -> List[Checkpoint]:
        """Oldest first."""
        return [_results.checkpoint(one) for one in json.loads(await run(self._native.checkpoints()))]

    async def remove_checkpoint(self, name: str) -> None:
        """Raises `NotFound`."""
        await run(self._native.remove_checkpoint(name))

    async def rollback(self, checkpoint: Checkpoint | str) -> SandboxInfo:
        """Ends every process, makes the disk what it was, and runs again under the same id. Commands that ran have
        ended with reason "sandbox_gone". Raises `NotFound`."""
        name = checkpoint if isinstance(checkpoint, str) else checkpoint.name
        return _results.sandbox_info(json.loads(await run(self._native.rollback(name))))

    def fork(
        self,
        count: int = 1,
        *,
        checkpoint: Checkpoint | str | None = None,
        ttl: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSandboxes[Self]:
        """Makes `count` sandboxes alike, each with a copy of this one's disk, as it is now or was at a checkpoint, and
        with none of its processes; iterate over them as each is ready. They have no name; `labels` go over this one's;
        `ttl` is this one's unless told otherwise. Those that are not taken are stopped."""
        name = checkpoint.name if isinstance(checkpoint, Checkpoint) else checkpoint
        request = _options.fork_request(
            count, checkpoint=name, ttl=ttl, labels=labels, idempotency_key=idempotency_key
        )
        return AsyncSandboxes(type(self), self._native.fork(request))

    async def pack_diff(
        self,
        name: str,
        *,
        version: str = "latest",
        kind: Literal["base", "workspace", "toolkit"] = "base",
        exclude: Layers = (),
        shell_history: bool = False,
        caches: bool = False,
        git_unreachable: bool = False,
        newer_than: str | None = None,
    ) -> PackReport:
        """What was written here becomes a layer, and an image of this name, which starts new sandboxes. It runs on
        meanwhile. A "base" is the sandbox's own layers with the new one on top; a "workspace" or "toolkit" is the new
        one alone.

        What the rest names is left out, and hidden where a lower layer has it: `exclude` by patterns over absolute
        paths ("/srv/answers", "/**/*.key"); `shell_history`; `caches`, with /tmp; of git repositories what neither
        HEAD nor the index reaches (`git_unreachable`); what changed after the file `newer_than` did. The sandbox itself keeps it.
        """
        request = _options.pack_request(
            name,
            version=version,
            kind=kind,
            exclude=exclude,
            shell_history=shell_history,
            caches=caches,
            git_unreachable=git_unreachable,
            newer_than=newer_than,
        )
        return _results.pack_report(json.loads(await run(self._native.pack_diff(request))))


class AsyncSandboxes(Generic[S]):
    """The sandboxes of one batch, as each is ready. One that cannot be made is raised in its place, and the next call
    goes on with the others. Closed, or forgotten, it stops those that were not taken."""

    def __init__(self, kind: type[S], native: _dsec.Batch) -> None:
        self._kind = kind
        self._native = native

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> S:
        while (made := await run(self._native.next())) is False:
            pass
        if made is None:
            raise StopAsyncIteration
        return self._kind(made)

    async def aclose(self) -> None:
        await run(self._native.close())
