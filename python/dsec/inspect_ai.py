"""The sandbox provider "dsec" of inspect_ai: `inspect eval task.py --sandbox dsec:debian`. See docs/inspect.md.

inspect_ai finds it by the entry point of this package. It is a translation, over the public face of `dsec` alone:
calls and errors of the one to those of the other. A sample has its sandboxes to itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable
from typing import Literal, overload

import anyio
import sniffio
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel

import dsec

from . import _harness
from ._inspect_config import CONFIG_FILES, DsecConfig, DsecSandbox, MissingMetadata, read

__all__ = ["DsecConfig", "DsecSandbox", "DsecSandboxEnvironment"]

HARNESS = "inspect_ai"
OUTPUT_BYTES_MAX = 64 << 20
"""The most that a node returns of one stream."""
READ_BYTES_AT_ONCE = 128 << 20
"""A read into memory has a bound; a file beyond it is read in parts."""
NOT_EXECUTABLE = 126
SHELL = "command -v bash >/dev/null && exec bash -l; exec sh -l"


@sandboxenv(name="dsec")
class DsecSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample."""

    def __init__(self, sandbox: dsec.AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    def config_files(cls) -> list[str]:
        return CONFIG_FILES

    @classmethod
    def config_deserialize(cls, config: dict[str, object]) -> BaseModel:
        return DsecConfig.model_validate(config)

    def default_polling_interval(self) -> float:
        return 0.2

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Says now, and once, what each sample would otherwise fail with."""
        if sniffio.current_async_library() != "asyncio":
            raise PrerequisiteError("The sandbox provider dsec needs asyncio: unset INSPECT_ASYNC_BACKEND.")
        try:
            sandboxes = read(config, {}).sandboxes.values()
        except MissingMetadata:
            # Which images it will be each sample tells.
            return
        except (OSError, ValueError) as e:
            raise PrerequisiteError(f"The configuration of the sandbox provider dsec: {e}") from e
        try:
            images = dsec.AsyncImages()
            for name in {name for one in sandboxes for name in one.layers()}:
                await images.inspect(name)
        except dsec.NotFound as e:
            raise PrerequisiteError(f"{e.message}; `dsec image import` brings one.") from e
        except dsec.Error as e:
            raise PrerequisiteError(f"The DSec node: {e}. Does it run? `dsec up` starts one.") from e

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        sandboxes = read(config, metadata).in_order()
        labels = _harness.labels(HARNESS, task=task_name, sample=str(metadata.get("__sample_id__", "")))
        making = {
            name: asyncio.create_task(_harness.create(one.image, **one.options(labels)))
            for name, one in sandboxes.items()
        }
        try:
            await asyncio.gather(*making.values())
        except BaseException:
            # One cannot be made, or the sample is cancelled: the others go as well.
            with anyio.CancelScope(shield=True):
                for task in making.values():
                    task.cancel()
                made = await asyncio.gather(*making.values(), return_exceptions=True)
                await _stop(one for one in made if isinstance(one, dsec.AsyncSandbox))
            raise
        return {name: cls(task.result()) for name, task in making.items()}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        await _stop(one.as_type(DsecSandboxEnvironment).sandbox for one in environments.values())

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """`inspect sandbox cleanup dsec [ID]`: what an eval that was killed has left. Touches nothing else."""
        found = await dsec.AsyncSandbox.list(label=f"harness={HARNESS}")
        ids = [one.id for one in found if id in (None, one.id)]
        if id is not None and not ids:
            raise PrerequisiteError(f"There is no sandbox {id} that inspect_ai made.")
        for one in ids:
            try:
                await (await dsec.AsyncSandbox.connect(one)).stop()
            except dsec.NotFound:
                continue
            print(f"stopped {one}")

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        # A command that timed out is never run again (`timeout_retry`): it has had its effects. What the network
        # loses is sent again under one idempotency key. No process of this machine is used (`concurrency`).
        limit = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, OUTPUT_BYTES_MAX)
        try:
            result = await _harness.exec(
                self.sandbox,
                cmd,
                stdin=input,
                cwd=cwd,
                env=env,
                user=user or None,
                timeout=timeout or None,
                max_output=limit,
            )
        except dsec.InvalidArgument as e:
            if user and e.message.startswith("user:"):
                return ExecResult(False, NOT_EXECUTABLE, "", f"{e.message}\n")
            raise
        except dsec.Error as e:
            raise await self._translated(e, cwd or "") from e
        if result.reason == "sandbox_gone":
            raise SandboxUnavailableError(f"The sandbox {self.sandbox.id} ended while the command ran.")
        if result.timed_out:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            # The attribute by which inspect_ai shows the model what was written until then.
            setattr(late, "truncated_output", result.stdout + result.stderr)
            raise late
        if result.reason == "not_started" and result.stderr.rstrip().endswith("permission denied"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), cmd[0])
        if result.truncated:
            raise OutputLimitExceededError(_limit_text(limit), result.stdout + result.stderr)
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self.sandbox.files.write(file, contents)
        except dsec.Error as e:
            raise await self._translated(e, file) from e

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = b""
        try:
            # One byte more than may be is asked for: its size could be another by then, or, as in /proc, a lie.
            while want := min(READ_BYTES_AT_ONCE, limit + 1 - len(data)):
                part = await self.sandbox.files.read(file, offset=len(data), length=want)
                data = data + part if data else part
                if len(part) < want:
                    break
        except dsec.Error as e:
            raise await self._translated(e, file) from e
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode("utf-8") if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        try:
            await self.sandbox.info()
        except dsec.NotFound as e:
            raise ConnectionError(f"The sandbox {self.sandbox.id} does not run any more.") from e
        as_user = f"--user '{user}' " if user else ""
        command = f"dsec exec -it {as_user}{self.sandbox.id} -- sh -c '{SHELL}'"
        return SandboxConnection(type="dsec", command=command, container=self.sandbox.id)

    async def _translated(self, error: dsec.Error, path: str) -> Exception:
        """The exception that inspect_ai expects for an error on `path`."""
        match error:
            case dsec.NotFound():
                # Of the file, the directory, or of the sandbox itself?
                if await self._lives():
                    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            case dsec.PermissionDenied():
                return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            case dsec.IsDirectory():
                return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            case dsec.DiskFull():
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            case dsec.SandboxGone() | dsec.SandboxBroken() | dsec.Paused() | dsec.NoCapacity():
                pass
            case _:
                return error
        return SandboxUnavailableError(f"The sandbox {self.sandbox.id} cannot do this: {error}")

    async def _lives(self) -> bool:
        try:
            await self.sandbox.info()
        except dsec.NotFound:
            return False
        return True


async def _stop(sandboxes: Iterable[dsec.AsyncSandbox]) -> None:
    """Ends them all, whatever happens to one; that it had ended before is no error."""
    done = await asyncio.gather(*(one.stop() for one in sandboxes), return_exceptions=True)
    for failed in done:
        if isinstance(failed, BaseException) and not isinstance(failed, dsec.NotFound):
            raise failed


def _limit_text(limit: int) -> str:
    if limit == SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
        return SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
    return f"{limit >> 20} MiB"
