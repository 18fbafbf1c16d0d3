"""The sync face. Made of `_async.py` by `python/sync_face.py`: change that one."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, Literal, Union

from . import _client, _dsec, _options, _results
from ._sync_disk import Disk, Sandboxes
from ._waiting import run
from ._client import Client
from ._errors import NotFound
from ._options import Command, Data, Duration, Size, SpecOptions
from ._results import Dropped, Event, ExecInfo, ExecResult, Exit, FileInfo, HttpResponse
from ._results import Output, SandboxInfo, StreamName, TreeReport, WatchEvent

if TYPE_CHECKING:
    # Python 3.10 has neither; annotations are never evaluated.
    from typing_extensions import Self, Unpack

LocalPath = Union[str, "os.PathLike[str]"]


class Sandbox(Disk):
    """A sandbox. As a context manager it is stopped at the end; otherwise it lives until `stop()` or its TTL."""

    @classmethod
    def create(
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
        "egress". With an `idempotency_key` a second call, from whatever program, gets the same sandbox. Interrupted, it
        leaves no sandbox behind, unless there is such a key.
        """
        spec = _options.spec(image, **options)
        return cls(run(_client.native(client).create(spec, idempotency_key)))

    @classmethod
    def create_many(
        cls,
        count: int,
        image: str,
        *,
        idempotency_key: str | None = None,
        client: Client | None = None,
        **options: Unpack[SpecOptions],
    ) -> Sandboxes[Self]:
        """Makes `count` alike; iterate over them as each is ready. Those that are not taken are stopped."""
        spec = _options.spec(image, **options)
        return Sandboxes(cls, _client.native(client).create_many(count, spec, idempotency_key))

    @classmethod
    def connect(cls, id_or_name: str, *, client: Client | None = None) -> Self:
        """The sandbox with this id or name. Raises `NotFound`."""
        return cls(run(_client.native(client).get(id_or_name)))

    @classmethod
    def list(
        cls, *, name: str | None = None, label: str | None = None, client: Client | None = None
    ) -> list[SandboxInfo]:
        """What lives now; `label` is "key=value"."""
        return _results.sandbox_infos(run(_client.native(client).list(name, label)))

    @property
    def id(self) -> str:
        return self._native.id

    @property
    def created(self) -> SandboxInfo:
        """What was known when this handle was made."""
        return _results.sandbox_info(json.loads(self._native.created()))

    def info(self) -> SandboxInfo:
        """What is known now. Raises `NotFound` where it has ended."""
        return _results.sandbox_info(json.loads(run(self._native.info())))

    def set_ttl(self, ttl: Duration) -> SandboxInfo:
        """From now on it lives this long, whatever it was before."""
        ms = _options.milliseconds("ttl", ttl)
        return _results.sandbox_info(json.loads(run(self._native.set_ttl(ms))))

    def stop(self) -> None:
        """Ends it; returns when nothing is left of it. Raises `NotFound` where it had ended already."""
        run(self._native.stop())

    def exec(
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
        started is killed, and the result says so with what was written until then. `request_timeout`, or Ctrl-C in
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
        return _results.exec_result(run(self._native.exec(options, _options.wait_ms(request_timeout))))

    def spawn(
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
    ) -> Process:
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
        return Process(run(self._native.spawn(options)))

    def detach(
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
        return run(self._native.detach(options))

    def attach(self, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0) -> Process:
        """A command that runs or is remembered, from these bytes of its output on. Raises `NotFound`."""
        return Process(run(self._native.attach(exec_id, stdout_offset, stderr_offset)))

    def execs(self) -> List[ExecInfo]:
        """The commands that run or are remembered."""
        return [_results.exec_info(one) for one in json.loads(run(self._native.execs()))]

    def exec_info(self, exec_id: str) -> ExecInfo:
        """What is known of one command. Raises `NotFound`."""
        return _results.exec_info(json.loads(run(self._native.exec_info(exec_id))))

    @property
    def files(self) -> Files:
        """Its files, as its user; see `Files.as_user`."""
        return Files(self._native, None)

    @property
    def ports(self) -> Ports:
        """`sandbox.ports[8000]`: a server on the loopback inside. No network of the sandbox is needed."""
        return Ports(self._native)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except NotFound:
            pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class Process:
    """A command that runs. Forgetting it leaves the command as it is: `attach` finds it by `exec_id`.

    Iterate over it for all that happens, in order, with `Exit` last; or over `stdout` and `stderr`; or just `wait()`.
    What nobody takes is kept up to 8 MiB a stream, then the oldest goes; the command is never held up.
    """

    def __init__(self, native: _dsec.Process) -> None:
        self._native = native
        self._text = {"stdout": _decoder(), "stderr": _decoder()}
        self._ended: Exit | None = None
        self.stdout = OutputStream(native, "stdout")
        self.stderr = OutputStream(native, "stderr")
        self.stdin = Input(native)

    @property
    def exec_id(self) -> str:
        return self._native.exec_id

    @property
    def offsets(self) -> tuple[int, int]:
        """The next byte of stdout and stderr that was not taken: where an `attach` goes on."""
        return self._native.offsets()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while True:
            if self._ended is not None:
                return self._rest()
            event = run(self._native.next("all"))
            if event is False:
                continue
            if event is None:
                raise StopIteration
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

    def wait(self, timeout: Duration | None = None) -> Exit:
        """Its end. When `timeout` runs out, `DeadlineExceeded` is raised and the command goes on."""
        return Exit(*run(self._native.wait_exit(_options.wait_ms(timeout))))

    def kill(self) -> None:
        """SIGKILLs all that the command started."""
        run(self._native.kill())

    def signal(self, signal: int, *, tree: bool = False) -> None:
        """Signals the command's first process, or with `tree` all that it started."""
        run(self._native.signal(signal, tree))

    def resize(self, rows: int, columns: int) -> None:
        """Tells the terminal its new size."""
        run(self._native.resize(rows, columns))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.exec_id!r})"


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


class OutputStream:
    """One stream of a process. Iterating gives text in pieces as they come; `lines()` whole lines."""

    def __init__(self, native: _dsec.Process, name: StreamName) -> None:
        self._native = native
        self._name = name
        self._text = _decoder()
        self.bytes_dropped = 0
        """Bytes that were not kept until they were asked for."""

    def next_bytes(self) -> bytes | None:
        """The next piece; None at the end."""
        while True:
            piece = run(self._native.next(self._name))
            if piece is None:
                return None
            if piece is False:
                continue
            if len(piece) == 3:
                self.bytes_dropped += piece[2]
                continue
            data: bytes = piece[1]
            return data

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while True:
            data = self.next_bytes()
            if text := self._text.decode(data or b"", data is None):
                return text
            if data is None:
                raise StopIteration

    def lines(self) -> Iterator[str]:
        """Lines, without their ends."""
        rest = ""
        for text in self:
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                yield line.removesuffix("\r")
        if rest:
            yield rest

    def read(self) -> str:
        """All that is still to come."""
        return "".join([text for text in self])

    def read_bytes(self) -> bytes:
        """All that is still to come."""
        pieces = []
        while (data := self.next_bytes()) is not None:
            pieces.append(data)
        return b"".join(pieces)


class Input:
    """The standard input of a process that was started with stdin="pipe" or on a terminal."""

    def __init__(self, native: _dsec.Process) -> None:
        self._native = native

    def write(self, data: Data) -> None:
        """Sends all of it, waiting while the command does not read. Raises `Conflict` where it takes none."""
        run(self._native.write(_options.data(data)))

    def close(self) -> None:
        """End-of-file; the output goes on."""
        run(self._native.close_stdin())


class Files:
    """Files of a sandbox. A relative path starts at its working directory."""

    def __init__(self, sandbox: _dsec.Sandbox, user: str | None) -> None:
        self._sandbox = sandbox
        self._native = sandbox.files(user)

    def as_user(self, user: str) -> Files:
        """With this user's rights, and owning what it makes: a name or "uid[:gid]"."""
        return Files(self._sandbox, user)

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The file, or a part of it; at most 256 MiB, use `download` for more.

        Raises `NotFound`, `IsDirectory`, `PermissionDenied`.
        """
        return run(self._native.read(path, offset, length))

    def read_text(self, path: str) -> str:
        """As UTF-8; what is not is U+FFFD."""
        return (self.read(path)).decode("utf-8", "replace")

    def write(self, path: str, data: Data, *, mode: int | None = None) -> FileInfo:
        """The file becomes `data`, whole or not at all; its directories are made. `mode` is for a new file."""
        return _results.file_info(run(self._native.write(path, _options.data(data), False, mode)))

    def append(self, path: str, data: Data) -> FileInfo:
        """`data` after what the file holds."""
        return _results.file_info(run(self._native.write(path, _options.data(data), True, None)))

    def upload(self, local: LocalPath, path: str, *, mode: int | None = None) -> FileInfo:
        """A file of this machine, of any size."""
        return _results.file_info(run(self._native.upload(local, path, mode)))

    def download(self, path: str, local: LocalPath) -> int:
        """Into a file of this machine, of any size; gives the number of bytes."""
        return run(self._native.download(path, local))

    def upload_dir(self, local: LocalPath, path: str) -> TreeReport:
        """What is in the directory `local` comes to be in `path`, which is made. Symlinks stay symlinks."""
        return TreeReport(*run(self._native.upload_dir(local, path)))

    def download_dir(self, path: str, local: LocalPath) -> TreeReport:
        """What is in the directory `path` comes to be in `local`, which is made."""
        return TreeReport(*run(self._native.download_dir(path, local)))

    def list(self, path: str = ".", *, depth: int = 1) -> list[FileInfo]:
        """A directory's entries, `depth` levels down."""
        return [_results.file_info(one) for one in run(self._native.list(path, depth))]

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Of what the name leads to, or without `follow` of the name itself."""
        return _results.file_info(run(self._native.stat(path, follow)))

    def exists(self, path: str) -> bool:
        """Whether the name is there; a symlink that leads nowhere is."""
        try:
            self.stat(path, follow=False)
        except NotFound:
            return False
        return True

    def mkdir(self, path: str) -> FileInfo:
        """With its parents; one that is there already is no error."""
        return _results.file_info(run(self._native.mkdir(path)))

    def move(self, source: str, target: str) -> FileInfo:
        """Renames."""
        return _results.file_info(run(self._native.rename(source, target)))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file or an empty directory; with `recursive` a directory with all that is in it."""
        run(self._native.remove(path, recursive))

    def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """What happens in a directory from now on; iterate over it, and close it."""
        return Watch(run(self._native.watch(path, recursive)))


class Watch:
    """Events of a directory, until it is closed."""

    def __init__(self, native: _dsec.Watch) -> None:
        self._native = native

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchEvent:
        while (event := run(self._native.next())) is False:
            pass
        if event is None:
            raise StopIteration
        kind: Any = event[0]
        return WatchEvent(kind, os.fsdecode(event[1]))

    def close(self) -> None:
        run(self._native.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ports:
    """The ports of a sandbox, by number."""

    def __init__(self, native: _dsec.Sandbox) -> None:
        self._native = native

    def __getitem__(self, port: int) -> Port:
        return Port(self._native, port)


class Port:
    """One port on a sandbox's loopback."""

    def __init__(self, native: _dsec.Sandbox, port: int) -> None:
        self._native = native
        self.port = port

    def connect(self) -> Connection:
        """Raises `NotFound` or `Conflict` where nothing listens."""
        return Connection(run(self._native.port_connect(self.port)))

    def get(self, path: str = "/") -> HttpResponse:
        """GET by HTTP, the answer in memory: at most 64 MiB, within a minute."""
        return HttpResponse(*run(self._native.port_get(self.port, path)))


class Connection:
    """Raw bytes to and from a server inside."""

    def __init__(self, native: _dsec.Connection) -> None:
        self._native = native

    def recv(self, size: int = 65536) -> bytes:
        """What comes next, at most `size` bytes; b"" at the end."""
        if data := self._native.left(size):
            return data
        while (piece := run(self._native.recv(size))) is False:
            pass
        return piece or b""

    def recv_all(self) -> bytes:
        """All until the end."""
        pieces = []
        while data := self.recv():
            pieces.append(data)
        return b"".join(pieces)

    def send(self, data: Data) -> None:
        """Sends all of it. Raises `Conflict` where the other side is closed."""
        run(self._native.send(_options.data(data)))

    def close_write(self) -> None:
        """End-of-file to the server; its answer can still be read."""
        run(self._native.close_write())

    def close(self) -> None:
        run(self._native.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
