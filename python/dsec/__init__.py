"""DSec: isolated Linux machines for agents.

    import dsec

    with dsec.Sandbox.create("debian") as sandbox:
        print(sandbox.exec(["python3", "-c", "print(1 + 1)"]).stdout)

`Sandbox` waits, `AsyncSandbox` is the same for asyncio. The server is the one of `DSEC_URL` and `DSEC_API_KEY`, else
the one that `dsec up` last started here; `Client` names another.

Every error of DSec is an `Error`, with a subclass for each code. A command that fails is none: look at its
`ExecResult`, or call `check()`.
"""

from ._client import Client
from ._dsec import __version__
from ._errors import (
    AlreadyExists,
    CommandFailed,
    Conflict,
    DeadlineExceeded,
    DiskFull,
    Error,
    Internal,
    InvalidArgument,
    IsDirectory,
    NoCapacity,
    NotFound,
    OomKilled,
    Paused,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    SandboxBroken,
    SandboxGone,
    Unauthenticated,
    Unreachable,
    Unsupported,
)
from ._results import (
    BuildReport,
    Checkpoint,
    Dropped,
    EnvironmentInfo,
    EnvironmentPart,
    Event,
    ExecInfo,
    ExecResult,
    Exit,
    FileInfo,
    HttpResponse,
    ImageInfo,
    LayerKind,
    Output,
    PackReport,
    PublishReport,
    SandboxInfo,
    Scrubbed,
    TreeReport,
    WatchEvent,
)
from ._sync import Connection, Files, Process, Sandbox
from ._sync_disk import Sandboxes
from ._sync_images import Environments, Images
from ._async import (
    AsyncConnection,
    AsyncFiles,
    AsyncProcess,
    AsyncSandbox,
)
from ._async_disk import AsyncSandboxes
from ._async_images import AsyncEnvironments, AsyncImages

__all__ = [
    "AlreadyExists",
    "AsyncConnection",
    "AsyncEnvironments",
    "AsyncFiles",
    "AsyncImages",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxes",
    "BuildReport",
    "Checkpoint",
    "Client",
    "CommandFailed",
    "Conflict",
    "Connection",
    "DeadlineExceeded",
    "DiskFull",
    "Dropped",
    "EnvironmentInfo",
    "EnvironmentPart",
    "Environments",
    "Error",
    "Event",
    "ExecInfo",
    "ExecResult",
    "Exit",
    "FileInfo",
    "Files",
    "HttpResponse",
    "ImageInfo",
    "Images",
    "Internal",
    "InvalidArgument",
    "IsDirectory",
    "LayerKind",
    "NoCapacity",
    "NotFound",
    "OomKilled",
    "Output",
    "PackReport",
    "Paused",
    "PermissionDenied",
    "Process",
    "PublishReport",
    "QuotaExceeded",
    "RateLimited",
    "Sandbox",
    "SandboxBroken",
    "SandboxGone",
    "SandboxInfo",
    "Sandboxes",
    "Scrubbed",
    "TreeReport",
    "Unauthenticated",
    "Unreachable",
    "Unsupported",
    "WatchEvent",
    "__version__",
]
