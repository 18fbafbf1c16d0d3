"""The stock swe-rex package against a real node. DSEC_URL and DSEC_API_KEY name the node and a key, DSEC_RESTART a
program that kills the node's server (`kill`) and starts it again (`up`).

`cargo xtask swerex` runs this for several versions.
"""

import asyncio
import os
import subprocess

import pytest
import requests
from swerex.runtime.abstract import BashAction, BashInterruptAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

NODE = os.environ["DSEC_URL"]
KEY = os.environ["DSEC_API_KEY"]
HEADERS = {"X-API-Key": KEY}


def make_sandbox():
    spec = {"kind": "container", "image": "debian"}
    made = requests.post(f"{NODE}/v1/sandboxes", headers=HEADERS, json={"count": 1, "spec": spec}, timeout=60)
    return made.json()["created"]["sandbox"]["id"]


def stop_sandbox(sandbox):
    requests.delete(f"{NODE}/v1/sandboxes/{sandbox}", headers=HEADERS, timeout=60)


@pytest.fixture
def sandbox():
    id = make_sandbox()
    yield id
    # First: a sandbox where nothing runs ends at once.
    requests.post(f"{NODE}/swerex/{id}/close", headers=HEADERS, timeout=60)
    stop_sandbox(id)


@pytest.fixture
def url(sandbox):
    return f"{NODE}/swerex/{sandbox}"


async def apart(call, *args):
    return await asyncio.wait_for(asyncio.to_thread(lambda: asyncio.run(call(*args))), 90)


class Rex:
    """A stock runtime with short names. Each call is made in a thread: before 1.4.0 the client blocks its loop."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.runtime = RemoteRuntime(host=f"{NODE}/swerex/{sandbox}", auth_token=KEY, timeout=10)

    async def run(self, command, **options):
        return await self.act(BashAction(command=command, **{"timeout": 20, **options}))

    async def out(self, command, **options):
        return (await self.run(command, **options)).output

    async def interrupt(self, **options):
        return await self.act(BashInterruptAction(**options))

    async def act(self, action):
        return await apart(self.runtime.run_in_session, action)

    async def create(self, **options):
        return await apart(self.runtime.create_session, CreateBashSessionRequest(**{"startup_timeout": 10, **options}))

    async def execute(self, command, **options):
        return await apart(self.runtime.execute, Command(command=command, **{"timeout": 20, **options}))


@pytest.fixture
async def rex(sandbox):
    return Rex(sandbox)


@pytest.fixture
async def shell(rex):
    """The same with the session `default`."""
    await rex.create()
    return rex


@pytest.fixture
def server():
    """Kills the node's server and starts it again."""

    def tell(what):
        nonlocal up
        subprocess.run([os.environ["DSEC_RESTART"], what], check=True, timeout=60, stdin=subprocess.DEVNULL)
        up = what == "up"

    up = True
    yield tell
    if not up:
        tell("up")
