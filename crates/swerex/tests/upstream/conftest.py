"""Fixtures for the tests of the swe-rex source distribution, which ships none: their names, over a sandbox of DSec.

`cargo xtask swerex` puts this beside the unpacked tests. DSEC_URL and DSEC_API_KEY name a node and a key.

Their tests share a file system with the runtime that they test. `tmp_path` is such a place: what is written to it is
written here and in the sandbox, and read from the sandbox.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests
import swerex
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

NODE = os.environ["DSEC_URL"]
TEST_API_KEY = os.environ["DSEC_API_KEY"]
HEADERS = {"X-API-Key": TEST_API_KEY}

# By name, each with the reason.
UNFIT = {
    "test_remote_deployment": "wants a port alone, ours is a path behind one; test_agent.py has a deployment for that",
    "test_interrupt_pager": "races a pager that has just stopped itself: wants that it was killed before it could",
}
if swerex.__version__ == "1.2.1":
    UNFIT["test_interrupt_session"] = "wants output without its last line's end, which is told from 1.3.0 on"
# What a sandbox of theirs has and the test image has not: `python`, and a pager that ignores the interrupt key.
PREPARE = """
ln -sf "$(command -v python3)" /usr/local/bin/python
command -v less || { printf '#!/bin/sh\\ntrap "" INT\\nexec sleep 1000\\n' >/usr/local/bin/less; chmod 755 /usr/local/bin/less; }
"""


class _Action(BashAction):
    timeout: float | None = 10


class _Command(Command):
    timeout: float | None = 10


@dataclass
class RemoteServer:
    # Their tests put it behind `http://127.0.0.1:`.
    port: str
    headers: dict = field(default_factory=lambda: dict(HEADERS))


def pytest_collection_modifyitems(items):
    for item in items:
        if reason := UNFIT.get(item.originalname):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def sandbox():
    spec = {"kind": "container", "image": "debian"}
    made = requests.post(f"{NODE}/v1/sandboxes", headers=HEADERS, json={"count": 1, "spec": spec})
    here = f"{NODE}/v1/sandboxes/{made.json()['created']['sandbox']['id']}"
    done = requests.post(f"{here}/exec", headers=HEADERS, json={"command": PREPARE, "user": "root"})
    assert done.json()["exit"]["code"] == 0, done.text
    yield here
    assert requests.delete(here, headers=HEADERS).ok


@pytest.fixture(scope="session")
def remote_server(sandbox):
    return RemoteServer(f"{NODE.rsplit(':', 1)[1]}/swerex/{sandbox.rsplit('/', 1)[1]}")


@pytest.fixture
async def remote_runtime(remote_server):
    runtime = RemoteRuntime(host=f"http://127.0.0.1:{remote_server.port}", auth_token=TEST_API_KEY, timeout=5)
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


@pytest.fixture
def tmp_path(tmp_path, sandbox):
    class Both(type(Path())):
        def write_text(self, text, *args, **kwargs):
            written = requests.put(f"{sandbox}/files", headers=HEADERS, params={"path": str(self)}, data=text.encode())
            assert written.ok, written.text
            return super().write_text(text, *args, **kwargs)

        def read_text(self, *_, **__):
            read = requests.get(f"{sandbox}/files", headers=HEADERS, params={"path": str(self)})
            assert read.ok, read.text
            return read.text

    return Both(tmp_path)
