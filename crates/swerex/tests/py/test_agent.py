"""A small agent, as SWE-agent works: a deployment, tools that are uploaded, a shell that it thinks aloud in, a patch."""

import pathlib

import pytest
from conftest import KEY
from swerex.deployment.remote import RemoteDeployment
from swerex.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, DeploymentNotStartedError
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

BROKEN = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\nassert add(2, 3) == 5, add(2, 3)\nprint('passed')\n"
EDIT = """#!/usr/bin/env python3
import pathlib, sys
name, old, new = sys.argv[1:]
path = pathlib.Path(name)
text = path.read_text()
if text.count(old) != 1:
    sys.exit(f"{old!r} is there {text.count(old)} times")
path.write_text(text.replace(old, new))
print("edited", name)
"""
# What a model might say, and what the last line of the answer to that is.
STEPS = [
    ("ls -A1", "test_calc.py"),
    ("cat calc.py", "    return a - b"),
    ("python3 test_calc.py", "AssertionError: -1"),
    ("echo 'no end", "syntax"),
    ("edit calc.py 'a * b' 'a + b'", "'a * b' is there 0 times"),
    ("python3 -c 'input()'", "timeout"),
    ("edit calc.py 'a - b' 'a + b'\n\npython3 test_calc.py", "passed"),
    ("diff -u /tmp/before.py calc.py > /tmp/patch; true", ""),
]


async def test_an_agent_mends_a_program(url, tmp_path: pathlib.Path):
    deployment = RemoteDeployment(host=url, auth_token=KEY, timeout=5)
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()
    runtime = deployment.runtime
    await runtime.wait_until_alive(timeout=10)

    (tmp_path / "tools/bin").mkdir(parents=True)
    (tmp_path / "tools/bin/edit").write_text(EDIT)
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "tools"), target_path="/tmp/tools"))
    for path, content in {"repo/calc.py": BROKEN, "repo/test_calc.py": TEST, "/tmp/before.py": BROKEN}.items():
        await runtime.write_file(WriteFileRequest(path=path, content=content))
    await runtime.execute(Command(command="chmod -R +x /tmp/tools/bin", shell=True, check=True))
    await runtime.create_session(CreateBashSessionRequest(startup_source=["/etc/profile"], startup_timeout=10))
    setup = "export PATH=$PATH:/tmp/tools/bin PAGER=cat PYTHONDONTWRITEBYTECODE=1 && cd repo"
    await runtime.run_in_session(BashAction(command=setup, timeout=10, check="raise", error_msg="setup"))

    async def step(command):
        try:
            action = BashAction(command=command, timeout=1 if "input" in command else 20, check="silent")
            return (await runtime.run_in_session(action)).output
        except BashIncorrectSyntaxError:
            return "syntax\n"
        except CommandTimeoutError:
            await runtime.run_in_session(BashInterruptAction())
            return "timeout\n"

    for command, last in STEPS:
        lines = (await step(command)).splitlines() or [""]
        assert lines[-1] == last, (command, lines)
    patch = (await runtime.read_file(ReadFileRequest(path="/tmp/patch"))).content
    assert "-    return a - b\n+    return a + b\n" in patch
    await deployment.stop()
