"""Section F of the black-box cases, and what a process does to its sandboxes: signals, fork, exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import dsec
import pytest
from dsec import Sandbox


def try_create(**options: str) -> Sandbox | dsec.Error:
    try:
        return Sandbox.create("debian", **options)  # type: ignore[arg-type]
    except dsec.Error as e:
        return e


def stop_all(sandboxes: list[Sandbox]) -> None:
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(Sandbox.stop, sandboxes))


def gone(label: str, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while Sandbox.list(label=label):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_case_61_a_hundred_creates_at_once_twice(node: object) -> None:
    for _ in range(2):
        with ThreadPoolExecutor(100) as threads:
            made = list(threads.map(lambda _: try_create(), range(100)))
        sandboxes = [one for one in made if isinstance(one, Sandbox)]
        for error in made:
            assert isinstance(error, Sandbox) or (error.code == "no_capacity" and error.retry_after), error
        assert len({one.id for one in sandboxes}) == len(sandboxes) > 0
        stop_all(sandboxes)


def test_case_61_a_batch_of_two_hundred(node: object) -> None:
    sandboxes = list(Sandbox.create_many(200, "debian", memory="64MiB", labels={"batch": "200"}))
    assert len({one.id for one in sandboxes}) == 200
    assert len(Sandbox.list(label="batch=200")) == 200
    stop_all(sandboxes)
    assert Sandbox.list(label="batch=200") == []


def test_case_62_the_same_name_twice_at_once(node: object) -> None:
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda _: try_create(name="twin"), range(2)))
    winners = [one for one in made if isinstance(one, Sandbox)]
    losers = [one for one in made if isinstance(one, dsec.Error)]
    assert len(winners) == 1 and isinstance(losers[0], dsec.AlreadyExists)
    assert Sandbox.connect("twin").id == winners[0].id
    winners[0].stop()


def test_case_62_the_same_key_is_the_same_sandbox(node: object) -> None:
    first = Sandbox.create("debian", idempotency_key="only-one")
    second = Sandbox.create("debian", idempotency_key="only-one")
    assert first.id == second.id
    first.stop()


def test_case_63_a_failed_create_leaks_nothing(node: object) -> None:
    for options in [{"image": "nosuch"}, {"image": "debian", "toolkits": "nosuch"}]:
        with pytest.raises(dsec.NotFound, match="nosuch"):
            Sandbox.create(**options)  # type: ignore[arg-type]
    with pytest.raises(dsec.InvalidArgument, match="memory"):
        Sandbox.create("debian", memory=1)
    errors = 0
    batch = Sandbox.create_many(3, "nosuch")
    while True:
        try:
            next(batch)
        except StopIteration:
            break
        except dsec.NotFound:
            errors += 1
    assert errors in (1, 3)
    assert Sandbox.list() == []


def test_case_65_stop_is_real(node: object) -> None:
    sandbox = Sandbox.create("debian")
    process = sandbox.spawn(["sleep", "100"])
    sandbox.stop()
    assert sandbox.id not in [s.id for s in Sandbox.list()]
    for action in (sandbox.stop, sandbox.info, lambda: sandbox.exec("true"), lambda: Sandbox.connect(sandbox.id)):
        with pytest.raises(dsec.NotFound):
            action()
    try:
        assert process.wait(timeout=30).reason == "sandbox_gone"
    except (dsec.SandboxGone, dsec.NotFound):
        pass


def test_case_66_the_ttl_is_hard_and_can_be_moved(node: object) -> None:
    sandbox = Sandbox.create("debian", ttl=timedelta(minutes=1), labels={"a": "b"}, name="timed")
    info = sandbox.created
    assert (info.name, info.labels, info.image, info.state) == ("timed", {"a": "b"}, "debian", "running")
    assert abs((info.expires - info.created).total_seconds() - 60) < 1
    assert abs((datetime.now(timezone.utc) - info.created).total_seconds()) < 60
    assert [s.id for s in Sandbox.list(label="a=b")] == [sandbox.id] == [s.id for s in Sandbox.list(name="timed")]
    sandbox.detach(["sleep", "100"])
    sandbox.set_ttl(1)
    assert gone("a=b", 20)


def test_a_loop_that_is_left_stops_the_rest(node: object) -> None:
    for sandbox in Sandbox.create_many(10, "debian", labels={"left": "1"}):
        break
    assert sandbox.exec(["echo", "mine"]).stdout == "mine\n"
    deadline = time.monotonic() + 20
    while (alive := [s.id for s in Sandbox.list(label="left=1")]) != [sandbox.id]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
    sandbox.stop()
    batch = Sandbox.create_many(5, "debian", labels={"left": "2"})
    next(batch).stop()
    batch.close()
    assert list(batch) == []
    assert gone("left=2")


def test_a_context_manager_takes_a_sandbox_that_has_ended(node: object) -> None:
    with Sandbox.create("debian") as sandbox:
        sandbox.stop()


INTERRUPTED = """
import dsec, sys, time
sandbox = dsec.Sandbox.connect(sys.argv[1])
print("ready", flush=True)
try:
    sandbox.exec(["sleep", "3777"])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_waiting_and_not_the_command(sandbox: Sandbox) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-c", INTERRUPTED, sandbox.id], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
        running = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 3777'"
        deadline = time.monotonic() + 30
        while sandbox.exec(running).stdout != "1\n":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent < 5
    assert child.wait(timeout=30) == 0
    assert sandbox.exec(running).stdout == "1\n"


INTERRUPTED_CREATE = """
import dsec
try:
    for sandbox in dsec.Sandbox.create_many(150, "debian", labels={"ctrl": "c"}):
        print(sandbox.id, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_in_a_create_leaves_none_that_was_not_handed_out(node: object) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-c", INTERRUPTED_CREATE], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        handed_out = {child.stdout.readline().strip() for _ in range(3)}
        child.send_signal(signal.SIGINT)
        handed_out |= {line.strip() for line in child.stdout}
    assert child.wait(timeout=60) == 0
    assert "interrupted" in handed_out and len(handed_out) < 150
    handed_out.remove("interrupted")
    # What the program never saw was stopped before it ended; the rest is its own. One may be between the two.
    alive = {info.id for info in Sandbox.list(label="ctrl=c") if info.state == "running"}
    assert alive >= handed_out and len(alive - handed_out) <= 1
    stop_all([Sandbox.connect(id) for id in alive])
    assert gone("ctrl=c")


def test_a_child_after_fork_has_connections_of_its_own(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["cat"], stdin="pipe")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            right = sandbox.exec(["echo", "child"]).stdout == "child\n" and Sandbox.connect(sandbox.id).id == sandbox.id
            try:
                process.wait(timeout=1)
            except RuntimeError as e:
                code = 0 if right and "os.fork()" in str(e) and "exec_id" in str(e) else 2
        finally:
            os._exit(code)
    for _ in range(20):
        assert sandbox.exec(["echo", "parent"]).stdout == "parent\n"
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    process.stdin.write("still mine")
    process.stdin.close()
    assert process.stdout.read() == "still mine"


def test_exit_in_the_middle_of_everything_is_clean(sandbox: Sandbox) -> None:
    code = """
import asyncio, dsec, sys, threading
sandbox = dsec.Sandbox.connect(sys.argv[1])
threading.Thread(target=lambda: sandbox.exec(["sleep", "5"]), daemon=True).start()
async def main():
    shared = await dsec.AsyncSandbox.connect(sys.argv[1])
    for _ in range(50):
        asyncio.ensure_future(shared.exec(["true"]))
    await asyncio.sleep(0.05)
asyncio.run(main())
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, sandbox.id], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)
