"""What the adapters to evaluation harnesses share: a create that waits for room, an exec that ends with its caller."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ._async import AsyncSandbox
from ._errors import NoCapacity, NotFound, RateLimited, SandboxGone
from ._options import Data, Duration, Size, SpecOptions
from ._results import ExecResult
from ._sync import Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

TTL_SECONDS_DEFAULT = 24 * 60 * 60.0
"""The end of a sample or trial stops its sandbox; this is for a harness that was killed."""
CAPACITY_SECONDS_MAX = 600.0
"""A job may well have more samples than fit at once: each waits this long for a place on the node."""
KILL_SECONDS_MAX = 10.0
LABEL_BYTES_MAX = 128


def labels(harness: str, **more: str) -> dict[str, str]:
    """Labels by which a sandbox is found again; what cannot be one is made to fit, what is empty left out."""
    wanted = {"harness": harness} | more
    return {key: fitting for key, value in wanted.items() if (fitting := _label(value))}


def _label(value: str) -> str:
    plain = "".join(c if c.isprintable() else "_" for c in value)
    return plain.encode("utf-8", "replace")[:LABEL_BYTES_MAX].decode("utf-8", "ignore")


async def create(image: str, **options: Unpack[SpecOptions]) -> AsyncSandbox:
    """Makes a sandbox; where the node is full, waits for a place. Raises what `AsyncSandbox.create` raises."""
    deadline = time.monotonic() + CAPACITY_SECONDS_MAX
    while True:
        try:
            return await AsyncSandbox.create(image, **options)
        except (NoCapacity, RateLimited) as e:
            if time.monotonic() > deadline:
                raise
            logger.info("waiting for a place on the node: %s", e.message)
            await asyncio.sleep(e.retry_after or 1.0)


def create_waiting(image: str, **options: Unpack[SpecOptions]) -> Sandbox:
    """`create` for harnesses that know no asyncio."""
    deadline = time.monotonic() + CAPACITY_SECONDS_MAX
    while True:
        try:
            return Sandbox.create(image, **options)
        except (NoCapacity, RateLimited) as e:
            if time.monotonic() > deadline:
                raise
            logger.info("waiting for a place on the node: %s", e.message)
            time.sleep(e.retry_after or 1.0)


async def exec(
    sandbox: AsyncSandbox,
    command: list[str],
    *,
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: Duration | None,
    max_output: Size,
    stdin: Data | None = None,
) -> ExecResult:
    """`sandbox.exec`, but cancelled it kills what it started: harnesses cancel an agent that is late, and then look at
    what it has done. It must not go on doing it."""
    key = uuid4().hex
    try:
        return await sandbox.exec(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            max_output=max_output,
            idempotency_key=key,
        )
    except asyncio.CancelledError:

        async def kill() -> None:
            # With the same key this is the command that runs, not a second one.
            process = await sandbox.spawn(
                command, env=env, cwd=cwd, user=user, stdin=stdin, timeout=timeout, idempotency_key=key
            )
            await process.kill()
            await process.wait(KILL_SECONDS_MAX)

        await _whatever_happens(kill())
        raise


async def _whatever_happens(kill: Coroutine[Any, Any, None]) -> None:
    """Runs to its end though this task is cancelled, and cancelled again as anyio does."""
    killing = asyncio.ensure_future(asyncio.wait_for(kill, KILL_SECONDS_MAX))
    while not killing.done():
        try:
            await asyncio.wait([killing])
        except asyncio.CancelledError:
            continue
    error = None if killing.cancelled() else killing.exception()
    if error is not None and not isinstance(error, (NotFound, SandboxGone)):
        logger.warning("a cancelled command may go on: %r", error)
