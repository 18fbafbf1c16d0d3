"""The async face. `_sync.py` is made of this file by `python/sync_face.py`: change this one."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, Literal, Union

from . import _client, _dsec, _options, _results
from ._async_disk import AsyncDisk, AsyncSandboxes
from ._awaiting import run
from ._client import Client
from ._errors import NotFound
from ._options import Command, Data, Duration, Size, SpecOptions
from ._results import Dropped, Event, ExecInfo, ExecResult, Exit, FileInfo, HttpResponse
from ._results import Output, SandboxInfo, StreamName, TreeReport, WatchEvent

if TYPE_CHECKING:
    # Python 3.10 has neither; annotations are never evaluated.
    from typing_extensions import Self, Unpack

LocalPath = Union[str, "os.PathLike[str]"]


class AsyncSandbox(AsyncDisk):
    """A sandbox. As a context manager it is stopped at the end; otherwise it lives until `stop()` or its TTL."""

    @classmethod
    async def create(
        cls,
        image: str,
        *,
        idempotency_key: str | None = None,
        client: Client | None = None,
        **options: Unpack[SpecOptions],
    ) -> Self:
        """Makes one and waits until it runs.

        `image`, `workspaces` and `toolkits` name layers. `memory` and `disk` take bytes or "512MiB", `cpu` cores,
        `ttl` seconds or a timedelta: the hard deadline, an hour unless told otherwise. `network` is "none" or
        "egress". With an `idempotency_key` a second call, from whatever program, gets the same sandbox. Cancelled, it
        leaves no sandbox behind, unless there is such a key.
        """
        spec = _options.spec(image, **options)
        return cls(await run(_client.native(client).create(spec, idempotency_key)))

    @classmethod
    def create_many(
        cls,
        count: int,
        image: str,
        *,
        idempotency_key: str | None = None,
        client: Client | None = None,
        **options: Unpack[SpecOptions],
    ) -> AsyncSandboxes[Self]:
        """Makes `count` alike; iterate over them as each is ready. Those that are not taken are stopped."""
        spec = _options.spec(image, **options)
        return AsyncSandboxes(cls, _client.native(client).create_many(count, spec, idempotency_key))

    @classmethod
    async def connect(cls, id_or_name: str, *, client: Client | None = None) -> Self:
        """The sandbox with this id or name. Raises `NotFound`."""
        return cls(await run(_client.native(client).get(id_or_name)))

    @classmethod
    async def list(
        cls, *, name: str | None = None, label: str | None = None, client: Client | None = None
    ) -> list[SandboxInfo]:
        """What lives now; `label` is "key=value"."""
        return _results.sandbox_infos(await run(_client.native(client).list(name, label)))

    @property
    def id(self) -> str:
        return self._native.id

    @property
    def created(self) -> SandboxInfo:
        """What was known when this handle was made."""
        return _results.sandbox_info(json.loads(self._native.created()))

    async def info(self) -> SandboxInfo:
        """What is known now. Raises `NotFound` where it has ended."""
        return _results.sandbox_info(json.loads(await run(self._native.info())))

    async def set_ttl(self, ttl: Duration) -> SandboxInfo:
        """From now on it lives this long, whatever it was before."""
        ms = _options.milliseconds("ttl", ttl)
        return _results.sandbox_info(json.loads(await run(self._native.set_ttl(ms))))

    async def stop(self) -> None:
        """Ends it; returns when nothing is left of it. Raises `NotFound` where it had ended already."""
        await run(self._native.stop())

    async def exec(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: Data | None = None,
        pty: bool | tuple[int, int] = False,
        timeout: Duration | None = None,
        max_output: Size | None = None,
        idempotency_key: str | None = None,
        request_timeout: Duration | None = None,
    ) -> ExecResult:
        """Runs a command to its end: text goes to the sandbox's `/bin/sh -c`, a sequence is its arguments.

        A command that fails is no exception; see `ExecResult.check()`. When `timeout` runs out, all that the command
        started is killed, and the result says so with what was written until then. `request_timeout`, or cancelling
        this, only stops the waiting. Of each stream `max_output` is kept, 8 MiB unless told otherwise. `pty` is True
        or (rows, columns).
        """
        options = _options.exec_options(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            pty=pty,
            timeout=timeout,
            max_output=max_output,
            idempotency_key=idempotency_key,
        )
        return _results.exec_result(await run(self._native.exec(options, _options.wait_ms(request_timeout))))

    async def spawn(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: Data | Literal["pipe"] | None = None,
        pty: bool | tuple[int, int] = False,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncProcess:
        """Starts a command and follows it. With stdin="pipe", or a terminal, input follows by `process.stdin`;
        text that is "pipe" itself is given as bytes."""
        options = _options.exec_options(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=None if stdin == "pipe" else stdin,
            stdin_stream=stdin == "pipe",
            pty=pty,
            timeout=timeout,
            idempotency_key=idempotency_key,
        )
        return AsyncProcess(await run(self._native.spawn(options)))

    async def detach(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: Data | None = None,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Starts a command and leaves it; gives its id, for `attach`."""
        options = _options.exec_options(
            command, env=env, cwd=cwd, user=user, stdin=stdin, timeout=timeout, idempotency_key=idempotency_key
        )
        return await run(self._native.detach(options))

    async def attach(self, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0) -> AsyncProcess:
        """A command that runs or is remembered, from these bytes of its output on. Raises `NotFound`."""
        return AsyncProcess(await run(self._native.attach(exec_id, stdout_offset, stderr_offset)))

    async def execs(self) -> List[ExecInfo]:
        """The commands that run or are remembered."""
        return [_results.exec_info(one) for one in json.loads(await run(self._native.execs()))]

    async def exec_info(self, exec_id: str) -> ExecInfo:
        """What is known of one command. Raises `NotFound`."""
        return _results.exec_info(json.loads(await run(self._native.exec_info(exec_id))))

    @property
    def files(self) -> AsyncFiles:
        """Its files, as its user; see `AsyncFiles.as_user`."""
        return AsyncFiles(self._native, None)

    @property
    def ports(self) -> AsyncPorts:
        """`sandbox.ports[8000]`: a server on the loopback inside. No network of the sandbox is needed."""
        return AsyncPorts(self._native)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except NotFound:
            pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class AsyncProcess:
    """A command that runs. Forgetting it leaves the command as it is: `attach` finds it by `exec_id`.

    Iterate over it for all that happens, in order, with `Exit` last; or over `stdout` and `stderr`; or just `wait()`.
    What nobody takes is kept up to 8 MiB a stream, then the oldest goes; the command is never held up.
    """

    def __init__(self, native: _dsec.Process) -> None:
        self._native = native
        self._text = {"stdout": _decoder(), "stderr": _decoder()}
        self._ended: Exit | None = None
        self.stdout = AsyncOutputStream(native, "stdout")
        self.stderr = AsyncOutputStream(native, "stderr")
        self.stdin = AsyncInput(native)

    @property
    def exec_id(self) -> str:
        return self._native.exec_id

    @property
    def offsets(self) -> tuple[int, int]:
        """The next byte of stdout and stderr that was not taken: where an `attach` goes on."""
        return self._native.offsets()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._ended is not None:
                return self._rest()
            event = await run(self._native.next("all"))
            if event is False:
                continue
            if event is None:
                raise StopAsyncIteration
            if event[0] == "exit":
                self._ended = Exit(*event[1])
                continue
            if len(event) == 3:
                return Dropped(*event)
            stream, data = event
            return Output(stream, data, self._text[stream].decode(data))

    def _rest(self) -> Event:
        """Characters that were cut off by the end of their stream, then the end."""
        names: tuple[StreamName, StreamName] = ("stdout", "stderr")
        for name in names:
            if text := self._text[name].decode(b"", True):
                return Output(name, b"", text)
        ended, self._ended = self._ended, None
        assert ended is not None
        return ended

    async def wait(self, timeout: Duration | None = None) -> Exit:
        """Its end. When `timeout` runs out, `DeadlineExceeded` is raised and the command goes on."""
        return Exit(*await run(self._native.wait_exit(_options.wait_ms(timeout))))

    async def kill(self) -> None:
        """SIGKILLs all that the command started."""
        await run(self._native.kill())

    async def signal(self, signal: int, *, tree: bool = False) -> None:
        """Signals the command's first process, or with `tree` all that it started."""
        await run(self._native.signal(signal, tree))

    async def resize(self, rows: int, columns: int) -> None:
        """Tells the terminal its new size."""
        await run(self._native.resize(rows, columns))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.exec_id!r})"


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


class AsyncOutputStream:
    """One stream of a process. Iterating gives text in pieces as they come; `lines()` whole lines."""

    def __init__(self, native: _dsec.Process, name: StreamName) -> None:
        self._native = native
        self._name = name
        self._text = _decoder()
        self.bytes_dropped = 0
        """Bytes that were not kept until they were asked for."""

    async def next_bytes(self) -> bytes | None:
        """The next piece; None at the end."""
        while True:
            piece = await run(self._native.next(self._name))
            if piece is None:
                return None
            if piece is False:
                continue
            if len(piece) == 3:
                self.bytes_dropped += piece[2]
                continue
            data: bytes = piece[1]
            return data

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            data = await self.next_bytes()
            if text := self._text.decode(data or b"", data is None):
                return text
            if data is None:
                raise StopAsyncIteration

    async def lines(self) -> AsyncIterator[str]:
        """Lines, without their ends."""
        rest = ""
        async for text in self:
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                yield line.removesuffix("\r")
        if rest:
            yield rest

    async def read(self) -> str:
        """All that is still to come."""
        return "".join([text async for text in self])

    async def read_bytes(self) -> bytes:
        """All that is still to come."""
        pieces = []
        while (data := await self.next_bytes()) is not None:
            pieces.append(data)
        return b"".join(pieces)


class AsyncInput:
    """The standard input of a process that was started with stdin="pipe" or on a terminal."""

    def __init__(self, native: _dsec.Process) -> None:
        self._native = native

    async def write(self, data: Data) -> None:
        """Sends all of it, waiting while the command does not read. Raises `Conflict` where it takes none."""
        await run(self._native.write(_options.data(data)))

    async def close(self) -> None:
        """End-of-file; the output goes on."""
        await run(self._native.close_stdin())


class AsyncFiles:
    """Files of a sandbox. A relative path starts at its working directory."""

    def __init__(self, sandbox: _dsec.Sandbox, user: str | None) -> None:
        self._sandbox = sandbox
        self._native = sandbox.files(user)

    def as_user(self, user: str) -> AsyncFiles:
        """With this user's rights, and owning what it makes: a name or "uid[:gid]"."""
        return AsyncFiles(self._sandbox, user)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The file, or a part of it; at most 256 MiB, use `download` for more.

        Raises `NotFound`, `IsDirectory`, `PermissionDenied`.
        """
        return await run(self._native.read(path, offset, length))

    async def read_text(self, path: str) -> str:
        """As UTF-8; what is not is U+FFFD."""
        return (await self.read(path)).decode("utf-8", "replace")

    async def write(self, path: str, data: Data, *, mode: int | None = None) -> FileInfo:
        """The file becomes `data`, whole or not at all; its directories are made. `mode` is for a new file."""
        return _results.file_info(await run(self._native.write(path, _options.data(data), False, mode)))

    async def append(self, path: str, data: Data) -> FileInfo:
        """`data` after what the file holds."""
        return _results.file_info(await run(self._native.write(path, _options.data(data), True, None)))

    async def upload(self, local: LocalPath, path: str, *, mode: int | None = None) -> FileInfo:
        """A file of this machine, of any size."""
        return _results.file_info(await run(self._native.upload(local, path, mode)))

    async def download(self, path: str, local: LocalPath) -> int:
        """Into a file of this machine, of any size; gives the number of bytes."""
        return await run(self._native.download(path, local))

    async def upload_dir(self, local: LocalPath, path: str) -> TreeReport:
        """What is in the directory `local` comes to be in `path`, which is made. Symlinks stay symlinks."""
        return TreeReport(*await run(self._native.upload_dir(local, path)))

    async def download_dir(self, path: str, local: LocalPath) -> TreeReport:
        """What is in the directory `path` comes to be in `local`, which is made."""
        return TreeReport(*await run(self._native.download_dir(path, local)))

    async def list(self, path: str = ".", *, depth: int = 1) -> list[FileInfo]:
        """A directory's entries, `depth` levels down."""
        return [_results.file_info(one) for one in await run(self._native.list(path, depth))]

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Of what the name leads to, or without `follow` of the name itself."""
        return _results.file_info(await run(self._native.stat(path, follow)))

    async def exists(self, path: str) -> bool:
        """Whether the name is there; a symlink that leads nowhere is."""
        try:
            await self.stat(path, follow=False)
        except NotFound:
            return False
        return True

    async def mkdir(self, path: str) -> FileInfo:
        """With its parents; one that is there already is no error."""
        return _results.file_info(await run(self._native.mkdir(path)))

    async def move(self, source: str, target: str) -> FileInfo:
        """Renames."""
        return _results.file_info(await run(self._native.rename(source, target)))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file or an empty directory; with `recursive` a directory with all that is in it."""
        await run(self._native.remove(path, recursive))

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncWatch:
        """What happens in a directory from now on; iterate over it, and close it."""
        return AsyncWatch(await run(self._native.watch(path, recursive)))


class AsyncWatch:
    """Events of a directory, until it is closed."""

    def __init__(self, native: _dsec.Watch) -> None:
        self._native = native

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while (event := await run(self._native.next())) is False:
            pass
        if event is None:
            raise StopAsyncIteration
        kind: Any = event[0]
        return WatchEvent(kind, os.fsdecode(event[1]))

    async def aclose(self) -> None:
        await run(self._native.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncPorts:
    """The ports of a sandbox, by number."""

    def __init__(self, native: _dsec.Sandbox) -> None:
        self._native = native

    def __getitem__(self, port: int) -> AsyncPort:
        return AsyncPort(self._native, port)


class AsyncPort:
    """One port on a sandbox's loopback."""

    def __init__(self, native: _dsec.Sandbox, port: int) -> None:
        self._native = native
        self.port = port

    async def connect(self) -> AsyncConnection:
        """Raises `NotFound` or `Conflict` where nothing listens."""
        return AsyncConnection(await run(self._native.port_connect(self.port)))

    async def get(self, path: str = "/") -> HttpResponse:
        """GET by HTTP, the answer in memory: at most 64 MiB, within a minute."""
        return HttpResponse(*await run(self._native.port_get(self.port, path)))


class AsyncConnection:
    """Raw bytes to and from a server inside."""

    def __init__(self, native: _dsec.Connection) -> None:
        self._native = native

    async def recv(self, size: int = 65536) -> bytes:
        """What comes next, at most `size` bytes; b"" at the end."""
        if data := self._native.left(size):
            return data
        while (piece := await run(self._native.recv(size))) is False:
            pass
        return piece or b""

    async def recv_all(self) -> bytes:
        """All until the end."""
        pieces = []
        while data := await self.recv():
            pieces.append(data)
        return b"".join(pieces)

    async def send(self, data: Data) -> None:
        """Sends all of it. Raises `Conflict` where the other side is closed."""
        await run(self._native.send(_options.data(data)))

    async def close_write(self) -> None:
        """End-of-file to the server; its answer can still be read."""
        await run(self._native.close_write())

    async def aclose(self) -> None:
        await run(self._native.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
