"""The provider of inspect_ai: its own conformance suite on a real node, then whole evals, then what the suite leaves out."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip("inspect_ai needs Python 3.11", allow_module_level=True)

import anyio
import dsec
import inspect_ai
from conftest import Node
from dsec.inspect_ai import DsecConfig, DsecSandboxEnvironment
from inspect_ai import Task, task_with
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, solver, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import OutputLimitExceededError, SandboxEnvironment, SandboxUnavailableError
from inspect_ai.util import sandbox as the_sandbox
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

# inspect_ai calls what its own dependencies have deprecated, and leaves streams of an eval to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
async def sandbox_env(node: Node) -> AsyncIterator[SandboxEnvironment]:
    """What a sample gets that asks for no more than an image."""
    made = await DsecSandboxEnvironment.sample_init("self_check", "debian", {})
    yield made["default"]
    await DsecSandboxEnvironment.sample_cleanup("self_check", "debian", made, False)


def test_the_suite_is_whole() -> None:
    assert len(self_check.__all__) == 44
    assert all(name in globals() for name in self_check.__all__)


def test_inspect_finds_the_provider_by_the_entry_point() -> None:
    code = "from inspect_ai.util._sandbox.registry import registry_find_sandboxenv as find; print(find('dsec').__module__)"
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "dsec.inspect_ai\n"
    assert registry_find_sandboxenv("dsec") is DsecSandboxEnvironment


async def test_the_default_user_is_not_root_and_starts_in_its_home(sandbox_env: SandboxEnvironment) -> None:
    assert (await sandbox_env.exec(["sh", "-c", "id -un; pwd"])).stdout == "user\n/home/user\n"
    assert (await sandbox_env.exec(["pwd"], user="root")).stdout == "/home/user\n"


async def test_a_killed_command_reports_128_and_the_signal(sandbox_env: SandboxEnvironment) -> None:
    result = await sandbox_env.exec(["sh", "-c", "kill -9 $$"])
    assert (result.success, result.returncode) == (False, 137)


async def test_a_missing_command_is_a_result_and_a_missing_directory_an_error(sandbox_env: SandboxEnvironment) -> None:
    result = await sandbox_env.exec(["no-such-command"])
    assert result.returncode == 127 and "no-such-command" in result.stderr
    with pytest.raises(FileNotFoundError, match="/no/such"):
        await sandbox_env.exec(["true"], cwd="/no/such")


async def test_what_was_written_before_the_timeout_is_not_lost(sandbox_env: SandboxEnvironment) -> None:
    with pytest.raises(TimeoutError) as late:
        await sandbox_env.exec(["sh", "-c", "echo so far; sleep 60"], timeout=1)
    assert getattr(late.value, "truncated_output") == "so far\n"


async def test_a_timeout_runs_nothing_twice(sandbox_env: SandboxEnvironment) -> None:
    with pytest.raises(TimeoutError):
        await sandbox_env.exec(["sh", "-c", "echo x >> runs; sleep 60"], timeout=1, timeout_retry=True)
    assert await sandbox_env.read_file("runs") == "x\n"


@pytest.mark.parametrize("stdin", [None, "small", b"x" * (6 << 20)])
async def test_a_command_that_is_cancelled_is_killed(sandbox_env: SandboxEnvironment, stdin: str | bytes | None) -> None:
    """As when the time of a sample runs out, and it is scored then."""
    with anyio.move_on_after(1) as scope:
        await sandbox_env.exec(["sh", "-c", "while sleep 0.05; do date +%N >> alive; done"], input=stdin, timeout=60)
    assert scope.cancelled_caught
    last = await sandbox_env.read_file("alive")
    await asyncio.sleep(0.5)
    assert last and await sandbox_env.read_file("alive") == last


async def test_the_tools_that_inspect_puts_inside_work(sandbox_env: SandboxEnvironment) -> None:
    result = await SandboxEnvironmentProxy(sandbox_env).exec_remote(["sh", "-c", "id -un; pwd; exit 3"], stream=False)
    assert (result.stdout, result.returncode) == ("user\n/home/user\n", 3)


async def test_output_over_the_limit_is_an_error_with_head_and_tail(sandbox_env: SandboxEnvironment) -> None:
    flood = ["sh", "-c", "echo first; yes | head -c 3000000; echo last"]
    with override_max_exec_output_size(1 << 20), pytest.raises(OutputLimitExceededError, match="limit of 1 MiB") as e:
        await sandbox_env.exec(flood)
    assert e.value.truncated_output is not None
    assert e.value.truncated_output.startswith("first\n") and e.value.truncated_output.endswith("last\n")
    assert len(e.value.truncated_output) <= 1 << 20
    assert len((await sandbox_env.exec(flood)).stdout) == 3_000_011


async def test_the_default_limit_of_output_is_10_mib(sandbox_env: SandboxEnvironment) -> None:
    assert len((await sandbox_env.exec(["head", "-c", str(10 << 20), "/dev/zero"])).stdout) == 10 << 20
    with pytest.raises(OutputLimitExceededError, match="10 MiB"):
        await sandbox_env.exec(["head", "-c", str((10 << 20) + 1), "/dev/zero"])


async def test_a_file_of_100_mib_is_read_and_one_byte_more_is_not(sandbox_env: SandboxEnvironment) -> None:
    await sandbox_env.exec(["truncate", "-s", str(100 << 20), "big"])
    assert len(await sandbox_env.read_file("big", text=False)) == 100 << 20
    await sandbox_env.exec(["truncate", "-s", str((100 << 20) + 1), "big"])
    with pytest.raises(OutputLimitExceededError, match="100 MiB"):
        await sandbox_env.read_file("big", text=False)


async def test_text_is_utf8_and_keeps_its_line_ends(sandbox_env: SandboxEnvironment) -> None:
    await sandbox_env.write_file("a", b"one\r\ntwo\n")
    assert await sandbox_env.read_file("a") == "one\r\ntwo\n"
    await sandbox_env.write_file("a", b"\xff")
    with pytest.raises(UnicodeDecodeError):
        await sandbox_env.read_file("a")


async def test_a_sandbox_that_ended_is_unavailable(node: Node) -> None:
    made = await DsecSandboxEnvironment.sample_init("task", "debian", {})
    environment = made["default"].as_type(DsecSandboxEnvironment)
    await environment.sandbox.stop()
    with pytest.raises(SandboxUnavailableError, match=environment.sandbox.id):
        await environment.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await environment.read_file("/etc/passwd")
    with pytest.raises(ConnectionError):
        await environment.connection()
    await DsecSandboxEnvironment.sample_cleanup("task", "debian", made, True)


async def test_the_connection_is_a_command_that_works(sandbox_env: SandboxEnvironment, node: Node) -> None:
    for user in ("user", "root"):
        connection = await sandbox_env.connection(user=user)
        assert connection.type == "dsec" and "-it" in connection.command
        # No terminal here: the shell reads its commands from the pipe.
        shell = connection.command.replace("-it", "-i").replace("dsec", str(node.binary), 1)
        said = subprocess.run(shell, shell=True, input="id -un\n", capture_output=True, text=True, timeout=30, check=True)
        assert said.stdout == f"{user}\n"


CONFIG = """
sandboxes:
  attacker:
    image: debian
    workdir: /tmp
    env: {ROLE: "red ${SAMPLE_METADATA_THE_TEAM}"}
    user: "${SAMPLE_METADATA_WHO:-root}"
  victim: {image: debian, memory: 64MiB, cpu: 0.5, disk: 100MiB, pids: 50, hostname: victim, ttl: 600}
"""


async def test_a_file_names_several_sandboxes_and_takes_metadata(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "dsec.yaml"
    file.write_text(CONFIG)
    metadata: dict[str, Any] = {"the team": "one", "__sample_id__": 7}
    made = await DsecSandboxEnvironment.sample_init("range", str(file), metadata)
    try:
        assert list(made) == ["attacker", "victim"]
        result = await made["attacker"].exec(["sh", "-c", "echo $ROLE; id -un; pwd"])
        assert result.stdout == "red one\nroot\n/tmp\n"
        assert (await made["victim"].exec(["hostname"])).stdout == "victim\n"
        info = await made["victim"].as_type(DsecSandboxEnvironment).sandbox.info()
        assert info.labels == {"harness": "inspect_ai", "task": "range", "sample": "7"}
        assert info.spec["memory_bytes_max"] == 64 << 20 and info.spec["cpu_millis_max"] == 500
        assert info.spec["pids_max"] == 50 and info.spec["ttl_ms"] == 600_000
    finally:
        await DsecSandboxEnvironment.sample_cleanup("range", str(file), made, False)
    with pytest.raises(ValueError, match="THE_TEAM"):
        await DsecSandboxEnvironment.sample_init("range", str(file), {})


async def nothing_is_left(task: str) -> None:
    """Within a while: a create that was under way is undone by the server."""
    async with asyncio.timeout(20):
        while await dsec.AsyncSandbox.list(label=f"task={task}"):
            await asyncio.sleep(0.1)


async def test_one_that_cannot_be_made_takes_the_others_with_it(node: Node) -> None:
    config = DsecConfig(sandboxes={"default": {"image": "debian"}, "b": {"image": "no-such-image"}})
    with pytest.raises(dsec.NotFound):
        await DsecSandboxEnvironment.sample_init("half", config, {})
    await nothing_is_left("half")


async def test_a_sample_that_is_cancelled_leaves_nothing(node: Node) -> None:
    config = DsecConfig(sandboxes={str(n): {"image": "debian"} for n in range(8)})
    making = asyncio.create_task(DsecSandboxEnvironment.sample_init("cancelled", config, {}))
    while not await dsec.AsyncSandbox.list(label="task=cancelled") and not making.done():
        pass
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await nothing_is_left("cancelled")


async def test_a_full_node_is_waited_for(node: Node) -> None:
    taken = []
    # A node sells each core many times over; few of this size fit.
    cpu = min(60 * (os.cpu_count() or 1), 1000)
    try:
        with pytest.raises(dsec.NoCapacity, match="cpu"):
            while True:
                taken.append(await dsec.AsyncSandbox.create("debian", cpu=cpu, memory="64MiB"))
        config = DsecConfig(image="debian", cpu=cpu, memory="64MiB")
        waiting = asyncio.create_task(DsecSandboxEnvironment.sample_init("late", config, {}))
        # Longer than `create` itself tries again.
        await asyncio.sleep(5)
        assert not waiting.done()
    finally:
        for one in taken:
            await one.stop()
    await DsecSandboxEnvironment.sample_cleanup("late", None, await asyncio.wait_for(waiting, 60), False)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (None, "dsec:debian"),
        ("no-such-image", "no-such-image"),
        ("missing.yaml", "missing.yaml"),
        (DsecConfig(image="debian", toolkits=["no-such-toolkit"]), "no-such-toolkit"),
    ],
)
async def test_a_task_that_cannot_run_is_told_so_before_its_samples(node: Node, config: Any, why: str) -> None:
    with pytest.raises(PrerequisiteError) as e:
        await DsecSandboxEnvironment.task_init("task", config)
    assert why in str(e.value.message)


async def test_a_word_that_is_no_option_is_refused(node: Node, tmp_path: Path) -> None:
    (tmp_path / "dsec.toml").write_text('image = "debian"\nmemroy = "1GiB"\n')
    with pytest.raises(PrerequisiteError) as e:
        await DsecSandboxEnvironment.task_init("task", str(tmp_path / "dsec.toml"))
    assert "memroy" in str(e.value.message)


def test_a_configuration_survives_the_log() -> None:
    config = DsecConfig(image="debian", memory="1GiB")
    again = DsecSandboxEnvironment.config_deserialize(json.loads(config.model_dump_json()))
    assert again == config and hash(again) == hash(config)


def test_the_clean_up_of_the_command_line_takes_only_what_inspect_made(node: Node, sandbox: dsec.Sandbox) -> None:
    made = [dsec.Sandbox.create("debian", labels={"harness": "inspect_ai"}) for _ in range(2)]

    def cleanup(*ids: str) -> str:
        inspect = Path(sysconfig.get_path("scripts"), "inspect")
        command = [str(inspect), "sandbox", "cleanup", "dsec", *ids]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    assert made[0].id in cleanup(made[0].id)
    assert {one.id for one in dsec.Sandbox.list()} == {made[1].id, sandbox.id}
    cleanup()
    assert {one.id for one in dsec.Sandbox.list()} == {sandbox.id}


# Whole evals. The model is a script: what it says is fixed, what it sees is not.


@solver
def marks_the_sandbox() -> Any:
    async def solve(state: TaskState, generate: Any) -> TaskState:
        state.metadata["id"] = (await the_sandbox().connection()).container
        return state

    return solve


@scorer(metrics=[accuracy()])
def the_file_says() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="C" if await the_sandbox().read_file("answer.txt") == target.text else "I")

    return score


def run_eval(commands: list[str], samples: list[Sample], tmp_path: Path, **args: Any) -> EvalLog:
    outputs = [ModelOutput.for_tool_call("mockllm/model", "bash", {"command": one}) for one in commands]
    outputs.append(ModelOutput.from_content("mockllm/model", "done"))
    for output in outputs:
        # Else inspect_ai counts the tokens, with a tokenizer that it gets from the network.
        output.usage = ModelUsage()
    task = Task(
        dataset=samples,
        solver=[marks_the_sandbox(), use_tools(bash(timeout=2)), generate()],
        scorer=the_file_says(),
        name="tiny",
    )
    model = get_model("mockllm/model", custom_outputs=outputs * len(samples), memoize=False)
    task = task_with(task, **args)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", max_samples=1)
    # Its open streams are collected here, where the warnings about them are ignored, and not in another test.
    gc.collect()
    return log


def tool_messages(log: EvalLog) -> list[Any]:
    assert log.samples
    return [message for sample in log.samples for message in sample.messages if message.role == "tool"]


def test_an_eval_runs_to_its_score(node: Node, tmp_path: Path) -> None:
    samples = [
        Sample(input="?", target=f"{n}\n", id=n, files={"start.txt": f"{n}"}, setup="cat start.txt > copy.txt; echo >> copy.txt")
        for n in range(3)
    ]
    commands = ["cat copy.txt; id -un", "sleep 60", "cp copy.txt answer.txt; exit 3"]
    log = run_eval(commands, samples, tmp_path, sandbox=("dsec", "debian"))
    assert log.status == "success", log.error
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1.0
    first, late, last = tool_messages(log)[:3]
    assert first.text == "0\nuser\n"
    assert late.error.type == "timeout"
    assert last.error is None
    assert log.samples and len({sample.metadata["id"] for sample in log.samples}) == 3
    assert dsec.Sandbox.list() == []


def test_an_eval_takes_its_image_from_the_sample(node: Node, tmp_path: Path) -> None:
    sandbox = inspect_ai.util.SandboxEnvironmentSpec(
        "dsec", DsecConfig(image="${SAMPLE_METADATA_IMAGE}", env={"WHICH": "${SAMPLE_METADATA_IMAGE}"})
    )
    samples = [Sample(input="?", target="debian\n", metadata={"image": "debian"})]
    log = run_eval(["echo $WHICH > answer.txt"], samples, tmp_path, sandbox=sandbox)
    assert log.status == "success", log.error
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1.0


def test_a_file_beside_the_task_is_found(node: Node, tmp_path: Path) -> None:
    (tmp_path / "dsec.yaml").write_text("image: debian\nenv: {FROM: file}\n")
    (tmp_path / "beside.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.solver import solver\n"
        "from inspect_ai.util import sandbox\n"
        "@solver\n"
        "def say():\n"
        "    async def solve(state, generate):\n"
        "        state.metadata['said'] = (await sandbox().exec(['printenv', 'FROM'])).stdout\n"
        "        return state\n"
        "    return solve\n"
        "@task\n"
        "def beside(): return Task(dataset=[Sample(input='?')], solver=say())\n"
    )
    inspect = Path(sysconfig.get_path("scripts"), "inspect")
    command = [str(inspect), "eval", "beside.py", "--sandbox", "dsec", "--model", "mockllm/model", "--display", "none"]
    env = {**os.environ, "INSPECT_LOG_DIR": str(tmp_path / "logs"), "INSPECT_LOG_FORMAT": "json"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (tmp_path / "logs").glob("*.json")
    (sample,) = json.loads(log.read_text())["samples"]
    assert sample["metadata"]["said"] == "file\n"
