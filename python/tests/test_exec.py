"""Sections A and B of the black-box cases, through the sync face. A test has the number of its case."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import dsec
import pytest
from dsec import Sandbox


def ok(sandbox: Sandbox, text: str) -> str:
    return sandbox.exec(text, timeout=120).check().stdout


def count(sandbox: Sandbox, word: str) -> int:
    """How many processes have this word in their command line; a class of one letter hides the search itself."""
    pattern = f"^[{word[0]}]{word[1:]}$"
    found = sandbox.exec(f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '{pattern}'")
    return int(found.stdout)


def until_count(sandbox: Sandbox, word: str, expected: int) -> None:
    deadline = time.monotonic() + 30
    while count(sandbox, word) != expected:
        assert time.monotonic() < deadline, f"never {expected} of {word}"
        time.sleep(0.05)


def test_case_01_background_child_keeps_the_pipe_open(sandbox: Sandbox) -> None:
    for expected in (1, 2):
        out = sandbox.exec(["sh", "-c", "sleep 3001 & echo started"], request_timeout=60)
        assert (out.exit_code, out.reason, out.stdout) == (0, "exited", "started\n")
        until_count(sandbox, "3001", expected)


def test_case_03_exit_does_not_wait_for_a_daemon_with_the_pipes(sandbox: Sandbox) -> None:
    exec_id = sandbox.detach("setsid sleep 3003 & exit 0")
    assert sandbox.attach(exec_id).wait(timeout=60).exit_code == 0
    ended = sandbox.exec_info(exec_id).exit
    assert ended is not None and ended.exit_code == 0
    assert sandbox.info().execs_live == 0
    until_count(sandbox, "3003", 1)


def test_case_05_fast_commands_lose_no_output(sandbox: Sandbox) -> None:
    def run(_: int) -> tuple[str, int]:
        out = sandbox.exec(["echo", "running"])
        return out.stdout, out.exit_code

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(run, range(2000))) == {("running\n", 0)}


def test_case_07_the_last_line(sandbox: Sandbox) -> None:
    assert sandbox.exec(["printf", "abc"]).stdout == "abc"
    with ThreadPoolExecutor(4) as threads:
        runs = threads.map(lambda _: sandbox.exec(["echo", "0"], pty=True).stdout, range(500))
        assert set(runs) == {"0\r\n"}


def test_case_09_a_multi_byte_character_across_chunks(sandbox: Sandbox) -> None:
    text = r"printf '\342'; sleep 0.3; printf '\211'; sleep 0.3; printf '\244'"
    assert sandbox.exec(text).stdout_bytes == b"\xe2\x89\xa4"
    for command, expected in [(text, "≤"), (r"printf 'a\342\211'", "a\ufffd")]:
        assert sandbox.spawn(command).stdout.read() == expected
        events = list(sandbox.spawn(command))
        assert "".join(e.text for e in events if isinstance(e, dsec.Output)) == expected
        assert isinstance(events[-1], dsec.Exit)


def test_case_10_invalid_utf8_is_no_error(sandbox: Sandbox) -> None:
    out = sandbox.exec(r"printf '\303\050\377\000'")
    assert out.stdout_bytes == b"\xc3\x28\xff\x00"
    assert out.stdout == "\ufffd(\ufffd\0"


def test_case_11_a_flood_is_capped_and_counted(sandbox: Sandbox) -> None:
    out = sandbox.exec(["yes"], timeout=3, max_output="1MiB")
    assert out.timed_out and out.exit_code == 137
    assert out.truncated and out.stdout_truncated and not out.stderr_truncated
    assert len(out.stdout_bytes) <= 1 << 20 < out.stdout_bytes_total


def test_case_13_not_found_and_not_executable(sandbox: Sandbox) -> None:
    for command, code in [("nosuch", 127), ("/nosuch/x", 127), ("/etc/passwd", 126), ("/etc", 126)]:
        out = sandbox.exec([command])
        assert (out.exit_code, out.reason) == (code, "not_started")
        assert command in out.stderr


def test_case_14_argv_boundaries_survive(sandbox: Sandbox) -> None:
    assert sandbox.exec(["python3", "-c", "print('hi there')"]).stdout == "hi there\n"
    odd = ["", " ", "a b", "'", '"', "$HOME", "*", "\n", "é", "-n", "\\"]
    script = "import sys; sys.stdout.write('|'.join(sys.argv[1:]))"
    assert sandbox.exec(("python3", "-c", script, *odd)).stdout == "|".join(odd)


def test_case_15_env_values_verbatim(node: object) -> None:
    env = {"A": "hello world", "B": "a'b\"c$HOME`id`\n2nd", "C": ""}
    with Sandbox.create("debian", env={"FROM_SPEC": "s", "A": "x"}) as sandbox:
        for key, value in [*env.items(), ("FROM_SPEC", "s")]:
            assert sandbox.exec(["printenv", key], env=env).stdout == f"{value}\n"


def test_case_17_huge_commands_work_or_say_so(sandbox: Sandbox) -> None:
    script = "import sys; print(sum(map(len, sys.argv[1:])))"
    assert sandbox.exec(["python3", "-c", script, *["x" * (64 << 10)] * 16]).stdout == f"{1 << 20}\n"
    with pytest.raises(dsec.InvalidArgument, match="argument too long"):
        sandbox.exec(["echo", "z" * (200 << 10)])
    try:
        out = sandbox.exec(f": {'y' * (300 << 10)}\necho end")
        assert out.stdout == "end\n" or "argument" in out.stderr.lower()
    except dsec.InvalidArgument as e:
        assert "argument too long" in e.message


def test_case_18_a_signal_of_its_own_is_no_timeout(sandbox: Sandbox) -> None:
    out = sandbox.exec(["sh", "-c", "kill -TERM $$"], timeout=100)
    assert (out.exit_code, out.reason, out.signal, out.timed_out) == (143, "signal", 15, False)


def test_case_19_oom_timeout_and_sigkill_are_told_apart(node: object) -> None:
    with Sandbox.create("debian", memory="128MiB") as sandbox:
        out = sandbox.exec(["python3", "-c", "x=bytearray(10**9)"], timeout=100)
        assert (out.exit_code, out.reason) == (137, "oom_killed")
        out = sandbox.exec("kill -9 $$")
        assert (out.exit_code, out.reason) == (137, "signal")
        out = sandbox.exec(["sleep", "100"], timeout=0.5)
        assert (out.exit_code, out.reason) == (137, "timeout")
        assert ok(sandbox, "echo alive") == "alive\n"


def test_case_21_timeout_kills_the_whole_tree(sandbox: Sandbox) -> None:
    out = sandbox.exec("sleep 3021 & sleep 3021; :", timeout=2)
    assert out.timed_out
    assert count(sandbox, "3021") == 0


def test_case_22_timeout_kills_what_ignores_and_escapes(sandbox: Sandbox) -> None:
    text = (
        "trap '' TERM INT HUP; setsid sleep 3022 & (setsid sh -c 'sleep 3022 & sleep 3022' &) ; sleep 3022; sleep 3022"
    )
    assert sandbox.exec(text, timeout=2).timed_out
    assert count(sandbox, "3022") == 0


def test_case_25_partial_output_at_timeout(sandbox: Sandbox) -> None:
    out = sandbox.exec("echo A; sleep 60", timeout=2)
    assert (out.stdout, out.reason) == ("A\n", "timeout")
    with pytest.raises(dsec.CommandFailed) as failed:
        out.check()
    assert failed.value.result.stdout == "A\n"


def test_case_26_three_clocks_three_errors(node: object) -> None:
    sandbox = Sandbox.create("debian")
    assert sandbox.exec(["sleep", "3026"], timeout=1).timed_out
    assert count(sandbox, "3026") == 0
    # The request's clock: the command goes on.
    with pytest.raises(dsec.DeadlineExceeded) as late:
        sandbox.exec(["sleep", "3026"], request_timeout=0.5)
    assert isinstance(late.value, TimeoutError)
    assert count(sandbox, "3026") == 1
    # The sandbox's life: the attached command is told.
    process = sandbox.spawn(["sleep", "3026"])
    sandbox.set_ttl(0.5)
    try:
        assert process.wait(timeout=60).reason == "sandbox_gone"
    except (dsec.SandboxGone, dsec.NotFound):
        pass
    deadline = time.monotonic() + 30
    with pytest.raises(dsec.NotFound):
        while sandbox.info().state == "stopping":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_case_28_a_hung_command_bricks_nothing(sandbox: Sandbox) -> None:
    hung = sandbox.spawn(["cat"], stdin="pipe")
    assert sandbox.exec(["sleep", "100"], timeout=1).timed_out
    assert ok(sandbox, "echo ok") == "ok\n"
    hung.signal(2)
    ended = hung.wait()
    assert (ended.exit_code, ended.reason, ended.signal) == (130, "signal", 2)


def test_case_31_a_daemon_survives_its_exec(sandbox: Sandbox) -> None:
    ok(sandbox, "cd /tmp && nohup python3 -m http.server 8000 >/tmp/l 2>&1 &")
    deadline = time.monotonic() + 60
    while True:
        try:
            page = sandbox.ports[8000].get("/")
            break
        except (dsec.NotFound, dsec.Conflict):
            assert time.monotonic() < deadline, "it never listened"
            time.sleep(0.1)
    assert page.status == 200 and ("content-type", "text/html; charset=utf-8") in page.headers
    get = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/').status)"
    assert sandbox.exec(["python3", "-c", get]).stdout == "200\n"


def test_case_32_reattach_later(sandbox: Sandbox) -> None:
    text = "i=0; while [ $i -lt 20 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 7"
    expected = "".join(f"{i}\n" for i in range(20))
    process = sandbox.spawn(text)
    first = next(process)
    assert isinstance(first, dsec.Output) and expected.startswith(first.text)
    exec_id, (offset, _) = process.exec_id, process.offsets
    assert offset == len(first.data)
    del process
    # While it runs, after its end, and from where the first reader was.
    for _ in range(2):
        process = sandbox.attach(exec_id)
        assert process.stdout.read() == expected
        assert process.wait().exit_code == 7
    assert sandbox.attach(exec_id, stdout_offset=offset).stdout.read() == expected[offset:]
    assert exec_id in [known.exec_id for known in sandbox.execs()]


def test_an_exec_with_a_key_runs_once(sandbox: Sandbox) -> None:
    for _ in range(3):
        out = sandbox.exec("echo x >> once; cat once", idempotency_key="k1")
        assert out.stdout == "x\n"
    assert sandbox.files.read_text("once") == "x\n"


def test_cwd_and_user(sandbox: Sandbox) -> None:
    assert sandbox.exec("id -un; pwd; echo $HOME").stdout == "user\n/home/user\n/home/user\n"
    assert sandbox.exec("id -un; pwd", user="root", cwd="/tmp").stdout == "root\n/tmp\n"
    with pytest.raises(dsec.Error, match="nosuch"):
        sandbox.exec(["true"], user="nosuch")
