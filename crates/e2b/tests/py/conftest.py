"""The stock e2b package against a real node. Only environment variables lead it there: E2B_API_URL, E2B_SANDBOX_URL,
E2B_API_KEY (and E2B_VALIDATE_API_KEY=false, for versions that would want a key of E2B's own form).

`cargo xtask e2b` runs this for several versions; what a version does not have is skipped.
"""

import asyncio
import os
import subprocess

import pytest
from e2b import AsyncSandbox, Sandbox

TIMEOUT_S = 300


@pytest.fixture
def sandbox():
    box = Sandbox.create(timeout=TIMEOUT_S)
    yield box
    box.kill()


@pytest.fixture(scope="session")
def loop():
    """One loop for all: some versions keep connections of the first one."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def run(loop):
    """Runs a coroutine function that takes an asynchronous sandbox."""

    def run(work):
        async def whole():
            box = await AsyncSandbox.create(timeout=TIMEOUT_S)
            try:
                return await asyncio.wait_for(work(box), 100)
            finally:
                await box.kill()

        return loop.run_until_complete(whole())

    return run


@pytest.fixture
def api():
    """Where the node answers, and a key."""
    return os.environ["E2B_API_URL"], os.environ["E2B_API_KEY"]


@pytest.fixture
def server():
    """Kills the node's server and starts it again: `DSEC_RESTART` does either."""

    def tell(what):
        nonlocal up
        subprocess.run([os.environ["DSEC_RESTART"], what], check=True, timeout=60, stdin=subprocess.DEVNULL)
        up = what == "up"

    up = True
    yield tell
    if not up:
        tell("up")
