"""The environment class of mini-swe-agent."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

os.environ["MSWEA_SILENT_STARTUP"] = "1"

import dsec
from conftest import Node
from dsec.mini_swe_agent import DsecEnvironment
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAME = "dsec.mini_swe_agent.DsecEnvironment"


@pytest.fixture
def env(node: Node, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FORWARDED", "yes")
    env = get_environment(
        {"environment_class": NAME, "image": "debian", "env": {"A": "b c"}, "forward_env": ["FORWARDED", "NONE"]}
    )
    assert isinstance(env, DsecEnvironment)
    yield env
    env.cleanup()
    env.cleanup()
    assert dsec.Sandbox.list() == []


def run(env: DsecEnvironment, command: str, **options: Any) -> tuple[str, int]:
    done = env.execute({"command": command}, **options)
    assert done["exception_info"] == ""
    return done["output"], done["returncode"]


def test_commands(env: DsecEnvironment) -> None:
    assert run(env, "id -un; pwd; echo $A $FORWARDED; exit 3") == ("user\n/home/user\nb c yes\n", 3)
    assert run(env, "echo out; echo err >&2; echo out") == ("out\nerr\nout\n", 0)
    assert run(env, "pwd", cwd="/tmp") == ("/tmp\n", 0)
    assert run(env, "kill -9 $$") == ("", 137)
    run(env, "echo kept > file")
    assert run(env, "cat file") == ("kept\n", 0)


def test_a_command_that_is_late_is_killed(env: DsecEnvironment) -> None:
    done = env.execute({"command": "echo so far; (while sleep 0.05; do echo >> alive; done) & sleep 60"}, timeout=1)
    assert (done["output"], done["returncode"], done["extra"]["exception_type"]) == ("so far\n", -1, "TimeoutError")
    before = run(env, "wc -l < alive")
    assert run(env, "sleep 0.5; wc -l < alive") == before


def test_what_goes_wrong_is_told_and_not_raised(env: DsecEnvironment) -> None:
    assert "/no/such" in env.execute({"command": "true"}, cwd="/no/such")["exception_info"]
    env.sandbox.stop()
    assert env.sandbox.id in env.execute({"command": "true"})["exception_info"]


def test_ctrl_c_kills_the_command(env: DsecEnvironment) -> None:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        env.execute({"command": "while sleep 0.05; do echo >> alive; done"})
    before = run(env, "wc -l < alive")
    assert run(env, "sleep 0.5; wc -l < alive") == before


def test_the_end_is_submitted(env: DsecEnvironment) -> None:
    with pytest.raises(Submitted) as end:
        env.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo one; echo two"})
    assert end.value.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "one\ntwo\n"}
    run(env, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1")


def test_templates_see_the_system_inside(env: DsecEnvironment) -> None:
    seen = env.get_template_vars(more=1)
    assert run(env, "uname -sr")[0] == f"{seen['system']} {seen['release']}\n"
    assert seen["node"] == run(env, "uname -n")[0].strip() and seen["more"] == 1 and seen["image"] == "debian"
    assert env.serialize()["info"]["config"]["environment_type"] == NAME


def test_an_agent_works(env: DsecEnvironment, tmp_path: Path) -> None:
    commands = ["echo 'print(6 * 7)' > a.py", "python3 a.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; python3 a.py"]
    model = DeterministicModel(outputs=[make_output("", [{"command": one}]) for one in commands], cost_per_call=0.1)  # type: ignore[no-untyped-call]
    log = tmp_path / "log.json"
    agent = DefaultAgent(model, env, system_template="{{system}}", instance_template="{{task}}", output_path=log)
    assert agent.run("?") == {"exit_status": "Submitted", "submission": "42\n"}
    assert any("<output>\n42\n</output>" in str(message["content"]) for message in agent.messages)
    assert NAME in log.read_text()


def test_one_that_is_forgotten_is_stopped(node: Node) -> None:
    env = DsecEnvironment(image="debian", memory="64MiB", cpu=0.5, user="root")
    assert run(env, "id -un") == ("root\n", 0)
    assert env.sandbox.info().labels == {"harness": "mini-swe-agent"}
    del env
    deadline = time.monotonic() + 20
    while dsec.Sandbox.list() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert dsec.Sandbox.list() == []


def test_a_key_that_is_none_is_refused(node: Node) -> None:
    with pytest.raises(ValueError, match="memroy"):
        get_environment({"environment_class": NAME, "image": "debian", "memroy": "1GiB"})
