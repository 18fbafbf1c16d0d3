"""Exceptions: one class for each code of the API, which says what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._results import ExecResult


class Error(Exception):
    """An error of DSec. `retry_after`, in seconds, is set where a second try makes sense."""

    code: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else type(self).code
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {self.message}{request}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (make, (self.code, self.message, self.request_id, self.retry_after))


class NotFound(Error):
    """No such sandbox, command, image or file; also a sandbox that has been stopped."""

    code = "not_found"


class AlreadyExists(Error):
    """The name is taken by a living sandbox, or the file exists."""

    code = "already_exists"


class InvalidArgument(Error, ValueError):
    """Wrong, out of range or malformed; the message names the argument."""

    code = "invalid_argument"


class Unauthenticated(Error):
    """No API key, or one that is unknown."""

    code = "unauthenticated"


class PermissionDenied(Error):
    """The key may not do this, or the sandbox's user may not touch that file."""

    code = "permission_denied"


class IsDirectory(Error):
    """A file was expected."""

    code = "is_directory"


class QuotaExceeded(Error):
    """The project's quota is used up."""

    code = "quota_exceeded"


class NoCapacity(Error):
    """No room on the node. Try again after `retry_after`."""

    code = "no_capacity"


class RateLimited(Error):
    """Too many requests from this key. Try again after `retry_after`."""

    code = "rate_limited"


class Unreachable(Error):
    """A registry does not answer, or breaks off again and again. Try again after `retry_after`."""

    code = "unreachable"


class DiskFull(Error):
    """The sandbox's disk quota is used up: remove files."""

    code = "disk_full"


class DeadlineExceeded(Error, TimeoutError):
    """The request's own clock ran out; a command goes on."""

    code = "deadline_exceeded"


class Conflict(Error):
    """Not in this state: the sandbox is still being made, the image is in use, the input is closed."""

    code = "conflict"


class Paused(Error):
    """The sandbox is paused."""

    code = "paused"


class SandboxGone(Error):
    """The sandbox ended while the request ran."""

    code = "sandbox_gone"


class SandboxBroken(Error):
    """The sandbox's processes or its agent are lost: stop it."""

    code = "sandbox_broken"


class OomKilled(Error):
    """The memory limit killed what the request needed."""

    code = "oom_killed"


class Unsupported(Error):
    """This node cannot; the message says what is missing."""

    code = "unsupported"


class Internal(Error):
    """A fault of DSec, or a connection that broke: quote the request id."""

    code = "internal"


BY_CODE: dict[str, type[Error]] = {kind.code: kind for kind in Error.__subclasses__()}


def make(code: str, message: str, request_id: str | None, retry_after: float | None) -> Error:
    """The exception of a code. One that a newer server made up is a plain `Error`."""
    kind = BY_CODE.get(code, Error)
    return kind(message, code=code, request_id=request_id, retry_after=retry_after)


class CommandFailed(Exception):
    """`ExecResult.check()` found a command that did not end with code 0. `result` has all of it."""

    def __init__(self, result: ExecResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        ended = f"the command ended with code {self.result.exit_code} ({self.result.reason})"
        stderr = self.result.stderr.strip()
        return f"{ended}: {stderr[-1000:]}" if stderr else ended
