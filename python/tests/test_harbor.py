"""The environment of Harbor: `harbor run` with the oracle agent on small tasks, each of which must give the reward 1.0."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 12):
    pytest.skip("Harbor needs Python 3.12", allow_module_level=True)

import dsec
from conftest import Node
from dsec.harbor import DsecEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

# Harbor and what it stands on call what they themselves have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NO_NETWORK = 'network_mode = "no-network"\n'
PASS = "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt\n"

# name: (more of task.toml, solve.sh, test.sh, files beside the task)
TASKS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "files": (
        '[environment]\nworkdir = "/app"\n' + NO_NETWORK,
        "test -w given.txt && tr a-z A-Z < given.txt > out.txt && mkdir deep && echo x > 'deep/a b'",
        "cd /app && grep -qx GIVEN out.txt && test -f 'deep/a b' && test -x /tests/more/tool && " + PASS,
        {"environment/given.txt": "given\n", "tests/more/tool": "#!/bin/sh\n"},
    ),
    "users": (
        '[agent]\nuser = "root"\n[verifier]\nuser = "user"\n[environment]\n' + NO_NETWORK,
        "test $(id -u) = 0 && echo secret > /root/secret && echo hello > /srv/public && id -un > /srv/who",
        "test $(id -un) = user && ! cat /root/secret && grep -qx hello /srv/public && grep -qx root /srv/who && " + PASS,
        {},
    ),
    "env": (
        '[environment]\n' + NO_NETWORK + '[environment.env]\nCOLOR = "deep blue"\n'
        '[solution.env]\nANSWER = "6 * 7"\n[verifier.env]\nGRADER = "strict"\n',
        'echo "$COLOR|$ANSWER" > ~/seen',
        'grep -qx "deep blue|6 \\* 7" ~/seen && test "$COLOR|$ANSWER|$GRADER" = "deep blue||strict" && ' + PASS,
        {},
    ),
    "large-logs": (
        "[environment]\n" + NO_NETWORK,
        "yes 'a long line of output, again and again' | head -c 30000000; echo end > ~/end",
        "test $(wc -c < /logs/agent/oracle.txt) = 30000000 && yes err | head -c 20000000 >&2; yes | head -c 20000000; "
        "test -f ~/end && " + PASS,
        {},
    ),
    "no-network": (
        "[environment]\n" + NO_NETWORK,
        "ls /sys/class/net > ~/net",
        "test \"$(cat ~/net)\" = lo && ! python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 3)' && "
        + PASS,
        {},
    ),
    "timeout": (
        '[agent]\ntimeout_sec = 3\n[environment]\n' + NO_NETWORK,
        "echo started > ~/log; (while sleep 0.1; do date >> ~/log; done) & sleep 600; echo late >> ~/log",
        # It is killed, its children as well, before we look.
        "grep -q started ~/log && ! grep -q late ~/log && a=$(wc -l < ~/log); sleep 1; test $a = $(wc -l < ~/log) && "
        + PASS,
        {},
    ),
    "separate-verifier": (
        'artifacts = ["/home/user/answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
        '[verifier.environment]\ndocker_image = "grader"\n' + NO_NETWORK + "[environment]\n" + NO_NETWORK,
        "echo 42 > ~/answer.txt; echo tampered > /tmp/tampered",
        "",
        {},
    ),
    "artifacts": (
        'artifacts = ["/home/user/report"]\n[environment]\nmemory_mb = 128\ncpus = 0.5\nstorage_mb = 200\n' + NO_NETWORK,
        "mkdir -p ~/report/deep && echo one > ~/report/a.txt && head -c 100000 /dev/zero > ~/report/deep/b && "
        "echo published > /logs/artifacts/c.txt",
        "test -f ~/report/a.txt && ! python3 -c 'bytearray(300 << 20)' && " + PASS,
        {},
    ),
}
ARTIFACTS = {"artifacts": {"a.txt": 4, "b": 100_000, "c.txt": 10}, "separate-verifier": {"answer.txt": 3}}


def write_task(root: Path, name: str) -> Path:
    more, solve, check, files = TASKS[name]
    task = root / name
    top, _, sections = more.partition("[")
    config = f'schema_version = "1.4"\n{top}[{sections}'
    config = config.replace("[environment]\n", '[environment]\ndocker_image = "debian"\n')
    for path, text in {
        "task.toml": config,
        "instruction.md": "Do it.\n",
        "solution/solve.sh": f"#!/bin/bash\nset -e\n{solve}\n",
        "tests/test.sh": f"#!/bin/bash\n{check}\n",
        "environment/.keep": "",
        **files,
    }.items():
        file = task / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
    return task


@pytest.fixture(scope="module")
def grader(node: Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The test image again, with the tests of a separate verifier in it."""
    tests = tmp_path_factory.mktemp("grader") / "test.sh"
    tests.write_text(f"#!/bin/bash\ngrep -qx 42 /home/user/answer.txt && ! test -e /tmp/tampered && {PASS}")
    tests.chmod(0o755)
    image = tests.with_name("grader.tar")
    image.write_bytes(Path(os.environ["DSEC_TEST_ROOTFS"]).read_bytes())
    with tarfile.open(image, "a") as tar:
        tar.add(tests, "tests/test.sh")
    dsec.Images().import_path("grader", image, user="user", workdir="/home/user")


def run(task: Path, *args: str, within: float = 240) -> tuple[dict[str, Any], Path, str]:
    """The result of the one trial, empty where there was none; where it is; what was said."""
    harbor = Path(sysconfig.get_path("scripts"), "harbor")
    jobs = task.parent / "jobs"
    command = [str(harbor), "run", "-p", str(task), "-a", "oracle", "-e", "dsec.harbor:DsecEnvironment"]
    done = subprocess.run(
        [*command, "-o", str(jobs), "-y", "-q", *args],
        cwd=task.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        env={**os.environ, "HOME": str(task.parent), "HARBOR_TELEMETRY": "0"},
    )
    said = done.stdout + done.stderr
    results = list(jobs.glob("*/*/result.json"))
    assert len(results) <= 1, said
    return (json.loads(results[0].read_text()), results[0].parent, said) if results else ({}, jobs, said)


def reward(result: dict[str, Any]) -> float | None:
    return ((result.get("verifier_result") or {}).get("rewards") or {}).get("reward")


@pytest.mark.parametrize("name", TASKS)
def test_the_oracle_gets_the_reward(name: str, node: Node, grader: None, tmp_path: Path) -> None:
    result, trial, said = run(write_task(tmp_path, name))
    logs = "\n".join(f"{file}: {file.read_text()[-500:]}" for file in trial.rglob("*.txt"))
    assert reward(result) == 1.0, f"{said}\n{json.dumps(result, indent=1)}\n{logs}"
    raised = result["exception_info"]
    assert (raised["exception_type"] if raised else None) == ("AgentTimeoutError" if name == "timeout" else None)
    for file, size in ARTIFACTS.get(name, {}).items():
        (found,) = (trial / "artifacts").rglob(file)
        assert found.stat().st_size == size
    assert dsec.Sandbox.list() == []


def test_a_wrong_answer_gets_none(node: Node, tmp_path: Path) -> None:
    task = write_task(tmp_path, "files")
    (task / "solution/solve.sh").write_text("#!/bin/bash\necho wrong > out.txt\n")
    result, _, said = run(task)
    assert result["agent_info"]["name"] == "oracle" and reward(result) is None, said
    assert dsec.Sandbox.list() == []


def test_a_task_with_a_dockerfile_alone_says_what_to_do(node: Node, tmp_path: Path) -> None:
    task = write_task(tmp_path, "env")
    config = (task / "task.toml").read_text()
    (task / "task.toml").write_text(config.replace('docker_image = "debian"\n', ""))
    (task / "environment/Dockerfile").write_text("FROM debian\n")
    result, _, said = run(task)
    assert result == {} and "DSec builds no Dockerfile" in said
    result, _, said = run(task, "--ek", "image=debian")
    assert reward(result) == 1.0, said


def environment(tmp_path: Path, config: EnvironmentConfig, **options: Any) -> DsecEnvironment:
    paths = TrialPaths(tmp_path / "trial")
    paths.mkdir()
    here = tmp_path / "environment"
    here.mkdir()
    return DsecEnvironment(
        environment_dir=here,
        environment_name="task",
        session_id="task__1__env",
        trial_paths=paths,
        task_env_config=config,
        **{"network_policy": NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)} | options,
    )


async def test_files_and_commands(node: Node, tmp_path: Path) -> None:
    one = environment(tmp_path, EnvironmentConfig(docker_image="debian"))
    await one.start(force_build=False)
    try:
        local = tmp_path / "local"
        (local / "sub").mkdir(parents=True)
        local.chmod(0o700)
        (local / "sub/tool").write_text("#!/bin/sh\necho ran\n")
        (local / "sub/tool").chmod(0o700)
        await one.upload_dir(local, "/opt/there")
        assert (await one.exec("/opt/there/sub/tool")).stdout == "ran\n"
        await one.upload_file(local / "sub/tool", "/opt/tool")
        assert (await one.exec("id -un; exec /opt/tool", user=0)).stdout == "root\nran\n"
        await one.download_dir("/opt/there", tmp_path / "back")
        assert (tmp_path / "back/sub/tool").read_text() == "#!/bin/sh\necho ran\n"
        await one.download_file("/opt/tool", tmp_path / "new/tool")
        assert (tmp_path / "new/tool").read_bytes() == (local / "sub/tool").read_bytes()
        assert await one.is_dir("/opt/there") and await one.is_file("/opt/tool") and not await one.is_file("/opt")
        result = await one.exec("echo $A; pwd; kill -TERM $$", env={"A": "b c"}, cwd="/tmp")
        assert (result.stdout, result.return_code) == ("b c\n/tmp\n", 143)
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            await one.exec("sleep 60", timeout_sec=1)
    finally:
        await one.stop(delete=True)
    assert await dsec.AsyncSandbox.list() == []


async def test_a_command_that_is_cancelled_is_killed(node: Node, tmp_path: Path) -> None:
    one = environment(tmp_path, EnvironmentConfig(docker_image="debian"))
    await one.start(force_build=False)
    try:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.exec("while sleep 0.05; do echo >> alive; done"), 1)
        before = (await one.exec("wc -l < alive")).stdout
        await asyncio.sleep(0.5)
        assert (await one.exec("wc -l < alive")).stdout == before
    finally:
        await one.stop(delete=True)


async def test_what_cannot_be_honoured_is_refused(node: Node, tmp_path: Path) -> None:
    some = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["a.example"])
    refused: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"docker_image": "debian"}, {"network_policy": some}, "allowlist"),
        ({"docker_image": "debian"}, {"mounts": [{"type": "bind", "source": "/a", "target": "/b"}]}, "mounts"),
        ({"docker_image": "debian", "gpus": 1}, {}, "GPU"),
        ({"docker_image": "debian"}, {"colour": "red"}, "colour"),
        ({}, {}, "dsec image import"),
    ]
    for number, (config, options, why) in enumerate(refused):
        (tmp_path / str(number)).mkdir()
        with pytest.raises((ValueError, RuntimeError), match=why):
            environment(tmp_path / str(number), EnvironmentConfig(**config), **options)
