"""What calls answer: plain, frozen data."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Literal, Union

from ._errors import CommandFailed

Reason = Literal["exited", "signal", "timeout", "oom_killed", "not_started", "sandbox_gone"]
StreamName = Literal["stdout", "stderr"]
_SHOWN = 200


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


@dataclass(frozen=True)
class Exit:
    """How a command ended. `exit_code` is as a shell gives it: the code, or 128 + the signal."""

    exit_code: int
    reason: Reason
    signal: int | None
    duration: float

    @property
    def timed_out(self) -> bool:
        return self.reason == "timeout"


@dataclass(frozen=True, repr=False)
class ExecResult:
    """How a command ended and what it wrote.

    Of output over the limit the head and the tail are kept; `truncated` says so, `stdout_bytes_total` counts all.
    """

    exec_id: str
    exit_code: int
    reason: Reason
    signal: int | None
    duration: float
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_bytes_total: int
    stderr_bytes_total: int
    stdout_truncated: bool
    stderr_truncated: bool

    def __repr__(self) -> str:
        """What a person wants to see of it, and not megabytes of that."""
        shown = [f"exit_code={self.exit_code}", f"reason={self.reason!r}"]
        for name, data in (("stdout", self.stdout_bytes), ("stderr", self.stderr_bytes)):
            head = data[:_SHOWN].decode("utf-8", "replace")
            shown.append(f"{name}={head!r}" + ("..." if len(data) > _SHOWN else ""))
        return f"ExecResult({', '.join(shown)}, duration={self.duration})"

    @cached_property
    def stdout(self) -> str:
        """As text; what is not UTF-8 is U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @cached_property
    def stderr(self) -> str:
        """As text; what is not UTF-8 is U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        return self.stdout_truncated or self.stderr_truncated

    @property
    def timed_out(self) -> bool:
        return self.reason == "timeout"

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def check(self) -> ExecResult:
        """Itself where the command ended with code 0, else raises `CommandFailed`."""
        if self.exit_code != 0:
            raise CommandFailed(self)
        return self


ExitTuple = tuple[int, Reason, Union[int, None], float]


def exec_result(native: tuple[str, ExitTuple, tuple[bytes, int, bool], tuple[bytes, int, bool]]) -> ExecResult:
    exec_id, (code, reason, signal, duration), (out, out_total, out_cut), (err, err_total, err_cut) = native
    return ExecResult(exec_id, code, reason, signal, duration, out, err, out_total, err_total, out_cut, err_cut)


@dataclass(frozen=True)
class Output:
    """A piece of a stream. `text` never splits a character: an incomplete one comes with the next piece."""

    stream: StreamName
    data: bytes
    text: str


@dataclass(frozen=True)
class Dropped:
    """`bytes` at `offset` of a stream are not kept any more: the reader came too late for them."""

    stream: StreamName
    offset: int
    bytes: int


Event = Union[Output, Dropped, Exit]
"""What a running command does; the last one is `Exit`."""


@dataclass(frozen=True)
class ExecInfo:
    """A command that runs or is remembered. `exit` is None while it runs."""

    exec_id: str
    command: list[str] | str
    started: datetime
    exit: Exit | None
    stdout_bytes: int
    stderr_bytes: int
    pty: bool


def exec_info(data: dict[str, Any]) -> ExecInfo:
    ended = data["exit"]
    if ended is not None:
        ended = Exit(ended["code"], ended["reason"], ended.get("signal"), ended["duration_ms"] / 1000)
    return ExecInfo(
        exec_id=data["exec_id"],
        command=data["command"],
        started=_time(data["started_ms"]),
        exit=ended,
        stdout_bytes=data["stdout_bytes"],
        stderr_bytes=data["stderr_bytes"],
        pty=data["pty"],
    )


@dataclass(frozen=True)
class SandboxInfo:
    """What is known of a sandbox. `spec` is all that it was asked to be, as the HTTP API has it."""

    id: str
    name: str | None
    state: str
    reason: str | None
    image: str
    labels: dict[str, str]
    created: datetime
    expires: datetime
    execs_live: int
    layers: list[str]
    spec: dict[str, Any] = field(repr=False)


def sandbox_info(data: dict[str, Any]) -> SandboxInfo:
    spec = data["spec"]
    return SandboxInfo(
        id=data["id"],
        name=spec.get("name"),
        state=data["state"],
        reason=data.get("reason"),
        image=spec["image"],
        labels=spec["labels"],
        created=_time(data["created_ms"]),
        expires=_time(data["expires_ms"]),
        execs_live=data["execs_live"],
        layers=data["layers"],
        spec=spec,
    )


def sandbox_infos(text: str) -> list[SandboxInfo]:
    return [sandbox_info(one) for one in json.loads(text)]


LayerKind = Literal["base", "workspace", "toolkit"]


@dataclass(frozen=True)
class ImageInfo:
    """A layer, or a stack of them, in the catalogue."""

    name: str
    version: str
    kind: LayerKind
    digest: str
    layers: list[str]
    user: str | None
    workdir: str | None
    env: dict[str, str]
    files: int
    size: int
    created: datetime
    in_use: int
    uses: int
    """Sandboxes created of it on its node, ever."""
    last_used: datetime | None
    labels: dict[str, str]
    exposed_ports: list[str]
    built_on: str | None


def image_info(data: dict[str, Any]) -> ImageInfo:
    config = data["config"]
    return ImageInfo(
        name=data["name"],
        version=data["version"],
        kind=data["kind"],
        digest=data["digest"],
        layers=data["layers"],
        user=config["user"],
        workdir=config["workdir"],
        env=config["env"],
        files=data["files"],
        size=data["size_bytes"],
        created=_time(data["created_ms"]),
        in_use=data["in_use"],
        uses=data["usage"]["sandboxes"],
        last_used=_last_used(data["usage"]),
        labels=config.get("labels", {}),
        exposed_ports=config.get("exposed_ports", []),
        built_on=data.get("built_on"),
    )


def _last_used(usage: dict[str, Any]) -> datetime | None:
    return _time(usage["last_ms"]) if usage["sandboxes"] else None


def image_infos(text: str) -> list[ImageInfo]:
    return [image_info(one) for one in json.loads(text)]


@dataclass(frozen=True)
class PublishReport:
    """What a publish has sent; all counts are 0 where the store had everything. `bytes_sent` is compressed."""

    image: ImageInfo
    layers_sent: int
    objects_sent: int
    bytes_sent: int


def publish_report(data: dict[str, Any]) -> PublishReport:
    return PublishReport(
        image_info(data["image"]), data["layers_sent"], data["objects_sent"], data["bytes_sent"]
    )


@dataclass(frozen=True)
class EnvironmentPart:
    """An image of an environment, as it was named. `digest` is None where it is followed and is not there."""

    kind: LayerKind
    reference: str
    follow: bool
    digest: str | None


@dataclass(frozen=True)
class EnvironmentInfo:
    """What an environment means: the sandboxes of one created now. `digest` is None where a part is not there."""

    name: str
    version: str
    parts: list[EnvironmentPart]
    digest: str | None
    layers: list[str]
    user: str | None
    workdir: str | None
    env: dict[str, str]
    files: int
    size: int
    created: datetime
    in_use: int
    uses: int
    """Sandboxes created of it on its node, ever."""
    last_used: datetime | None


def environment_info(data: dict[str, Any]) -> EnvironmentInfo:
    config = data["config"]
    return EnvironmentInfo(
        name=data["name"],
        version=data["version"],
        parts=[
            EnvironmentPart(one["kind"], one["reference"], one["follow"], one.get("digest")) for one in data["parts"]
        ],
        digest=data.get("digest"),
        layers=data["layers"],
        user=config["user"],
        workdir=config["workdir"],
        env=config["env"],
        files=data["files"],
        size=data["size_bytes"],
        created=_time(data["created_ms"]),
        in_use=data["in_use"],
        uses=data["usage"]["sandboxes"],
        last_used=_last_used(data["usage"]),
    )


def environment_infos(text: str) -> list[EnvironmentInfo]:
    return [environment_info(one) for one in json.loads(text)]


@dataclass(frozen=True)
class Checkpoint:
    """A disk that `rollback` and `fork` go back to. It goes with its sandbox."""

    name: str
    created: datetime


def checkpoint(data: dict[str, Any]) -> Checkpoint:
    return Checkpoint(data["name"], _time(data["created_ms"]))


ScrubRule = Literal["exclude", "shell_history", "caches", "git_unreachable", "newer_than"]


@dataclass(frozen=True)
class Scrubbed:
    """A path that was left out of a layer with all below it, and the rule that did it."""

    path: str
    rule: ScrubRule


@dataclass(frozen=True)
class PackReport:
    """What `pack_diff` made. `layer` is the digest of the diff alone, `frozen` the seconds that the sandbox was held
    still, `scrubbed` the first of the `scrubbed_count` paths that were left out."""

    image: ImageInfo
    layer: str
    files: int
    size: int
    frozen: float
    scrubbed: list[Scrubbed]
    scrubbed_count: int


def pack_report(data: dict[str, Any]) -> PackReport:
    return PackReport(
        image=image_info(data["image"]),
        layer=data["layer"],
        files=data["files"],
        size=data["size_bytes"],
        frozen=data["frozen_us"] / 1e6,
        scrubbed=[Scrubbed(one["path"], one["rule"]) for one in data["scrubbed"]],
        scrubbed_count=data["scrubbed_count"],
    )


@dataclass(frozen=True)
class BuildReport:
    """What `build` made, and how many of its steps ran in a sandbox."""

    image: ImageInfo
    steps_run: int
    steps_cached: int


def build_report(data: dict[str, Any]) -> BuildReport:
    return BuildReport(image_info(data["image"]), data["steps_run"], data["steps_cached"])


FileKind = Literal["file", "directory", "symlink", "fifo", "socket", "char_device", "block_device"]


@dataclass(frozen=True)
class FileInfo:
    """One name in a sandbox. Bytes that are not UTF-8 are as `os.fsdecode` gives them."""

    name: str
    path: str
    kind: FileKind
    size: int
    mode: int
    uid: int
    gid: int
    modified: datetime
    symlink_target: str | None

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        return self.kind == "directory"


FileTuple = tuple[bytes, bytes, FileKind, int, int, int, int, int, Union[bytes, None]]


def file_info(native: FileTuple) -> FileInfo:
    name, path, kind, size, mode, uid, gid, modified_ms, target = native
    return FileInfo(
        os.fsdecode(name),
        os.fsdecode(path),
        kind,
        size,
        mode,
        uid,
        gid,
        _time(modified_ms),
        None if target is None else os.fsdecode(target),
    )


@dataclass(frozen=True)
class TreeReport:
    """What the copy of a directory moved."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class WatchEvent:
    """`name` is relative to the watched directory. After "overflow" list it again: the kernel dropped events."""

    kind: Literal["created", "modified", "removed", "moved_from", "moved_to", "overflow"]
    name: str


@dataclass(frozen=True)
class HttpResponse:
    """The answer of a server inside a sandbox. Header names are in lower case."""

    status: int
    headers: list[tuple[str, str]]
    content: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")
