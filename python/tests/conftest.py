"""One real node for all tests: the `dsec` that the wheel installed, with the test image as `debian`.

DSEC_TEST_ROOTFS names the image's tar; DSEC_BINARY another `dsec`. At the end nothing of the node may be left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import dsec
import pytest


@dataclass
class Node:
    binary: Path
    data: Path
    context: Path

    def cli(self, *args: str | Path, within: float = 120) -> str:
        done = subprocess.run(
            [self.binary, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            env={**os.environ, "DSEC_DATA": str(self.data)},
        )
        assert done.returncode == 0, f"dsec {args}: {done.returncode}\n{done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        try:
            return "\n".join((self.data / "dsec.log").read_text().splitlines()[-40:])
        except OSError as e:
            return str(e)

    def pid(self) -> int:
        return int((self.data / "dsec.pid").read_text())

    def left(self) -> list[str]:
        """Processes and mounts that name the data directory."""
        found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.data) in line]
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if entry.name.isdigit() and str(self.data) in line:
                found.append(f"process {entry.name}: {line}")
        return found


def _binary() -> Path:
    named = os.environ.get("DSEC_BINARY")
    return Path(named) if named else Path(sysconfig.get_path("scripts"), "dsec")


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    rootfs = os.environ["DSEC_TEST_ROOTFS"]
    scratch = Path(tempfile.mkdtemp(prefix="dsec-python-", dir="/var/tmp"))
    node = Node(_binary(), scratch / "data", scratch / "context.toml")
    os.environ["DSEC_CONTEXT"] = str(node.context)
    for name in ("DSEC_URL", "DSEC_API_KEY"):
        os.environ.pop(name, None)
    node.cli("up", "--detach", "--listen", "127.0.0.1:0")
    try:
        dsec.Images().import_path(
            "debian",
            rootfs,
            user="user",
            workdir="/home/user",
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        yield node
        alive = [info for info in dsec.Sandbox.list() if info.state != "stopping"]
    finally:
        node.cli("down")
    deadline = time.monotonic() + 20
    while (left := node.left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"left behind: {left}"
    shutil.rmtree(scratch)
    assert not alive, f"sandboxes that no test stopped: {alive}"


@pytest.fixture
def sandbox(node: Node) -> Iterator[dsec.Sandbox]:
    with dsec.Sandbox.create("debian") as sandbox:
        yield sandbox


@pytest.fixture
async def asandbox(node: Node) -> AsyncIterator[dsec.AsyncSandbox]:
    async with await dsec.AsyncSandbox.create("debian") as sandbox:
        yield sandbox
