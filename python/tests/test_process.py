"""Section C (standard input, terminals) and D of the black-box cases; a process read from several sides."""

from __future__ import annotations

import threading
import time

import dsec
import pytest
from dsec import Sandbox


def test_case_34_no_stdin_is_end_of_file(sandbox: Sandbox) -> None:
    assert sandbox.exec("cat; echo done").stdout == "done\n"
    assert sandbox.exec(["cat"], stdin="").stdout == ""
    assert list(sandbox.spawn(["cat"]).stdout) == []


def test_case_35_half_close(sandbox: Sandbox) -> None:
    process = sandbox.spawn("wc -l; sleep 0.5; echo after", stdin="pipe")
    process.stdin.write("a\n")
    process.stdin.write(bytearray(b"b\n"))
    process.stdin.close()
    process.stdin.close()
    assert process.stdout.read() == "2\nafter\n"
    with pytest.raises(dsec.Conflict):
        process.stdin.write("more")


def test_case_36_fifty_mebibytes_of_stdin(sandbox: Sandbox) -> None:
    assert sandbox.exec(["wc", "-c"], stdin=b"x" * (50 << 20)).stdout.strip() == str(50 << 20)
    binary = bytes(range(256)) * 400
    sandbox.exec("cat > /tmp/binary", stdin=memoryview(binary)).check()
    assert sandbox.files.read("/tmp/binary") == binary


def test_case_38_terminal_size_at_start_and_on_resize(sandbox: Sandbox) -> None:
    for size in [(43, 132), (24, 80), (0, 0), (65535, 65535)]:
        assert sandbox.exec(["stty", "size"], pty=size).stdout == f"{size[0]} {size[1]}\r\n"
    assert sandbox.exec(["stty", "size"], pty=True).stdout == "24 80\r\n"
    text = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done"
    process = sandbox.spawn(text, pty=(43, 132), timeout=100)
    lines = process.stdout.lines()
    assert next(lines) == "ready"
    process.resize(30, 100)
    assert next(lines) == "30 100"
    assert process.wait().exit_code == 0


def test_case_39_the_terminal_controls(sandbox: Sandbox) -> None:
    process = sandbox.spawn("tty; exec sleep 3039", pty=True, timeout=100)
    assert next(process.stdout).startswith("/dev/pts/")
    process.stdin.write("\x03")
    ended = process.wait()
    assert (ended.reason, ended.signal, ended.exit_code) == ("signal", 2, 130)


def test_case_41_zombies_are_reaped(sandbox: Sandbox) -> None:
    sandbox.exec("i=0; while [ $i -lt 500 ]; do sh -c 'sleep 0.1 &'; i=$((i+1)); done", timeout=120).check()
    deadline = time.monotonic() + 30
    while sandbox.exec("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z'").stdout.strip() != "0":
        assert time.monotonic() < deadline, "zombies stay"
        time.sleep(0.1)


def test_case_43_a_fork_bomb_hurts_nobody_else(node: object, sandbox: Sandbox) -> None:
    with Sandbox.create("debian", pids=256) as bomb:
        bomb.detach(["bash", "-c", ":(){ :|:& };:"])
        time.sleep(1)
        assert sandbox.exec(["echo", "here"], request_timeout=60).stdout == "here\n"
        try:
            bomb.exec(["true"], timeout=5, request_timeout=60)
        except dsec.Error as e:
            assert e.code != "internal", e


def test_both_streams_are_read_at_once_from_two_threads(sandbox: Sandbox) -> None:
    process = sandbox.spawn("for i in $(seq 2000); do echo out$i; echo err$i >&2; done")
    read: dict[str, list[str]] = {}

    def reader(name: str) -> None:
        read[name] = list(getattr(process, name).lines())

    threads = [threading.Thread(target=reader, args=(name,)) for name in ("stdout", "stderr")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read["stdout"] == [f"out{i}" for i in range(1, 2001)]
    assert read["stderr"] == [f"err{i}" for i in range(1, 2001)]
    assert process.wait().exit_code == 0


def test_events_come_in_order_and_once(sandbox: Sandbox) -> None:
    events = list(sandbox.spawn("echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c; exit 3"))
    seen = [(e.stream, e.text) for e in events if isinstance(e, dsec.Output)]
    assert seen == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")]
    ended = events[-1]
    assert isinstance(ended, dsec.Exit) and ended.exit_code == 3 and ended.duration >= 0.4


def test_what_nobody_takes_is_bounded_and_said(sandbox: Sandbox) -> None:
    process = sandbox.spawn("head -c 20000000 /dev/zero | tr '\\0' x >&2; echo end")
    assert process.stdout.read() == "end\n"
    data = process.stderr.read_bytes()
    assert len(data) + process.stderr.bytes_dropped == 20_000_000
    assert 0 < len(data) <= 8 << 20
    # All of it from the node's own log, head and tail.
    events = list(sandbox.attach(process.exec_id))
    lost = sum(e.bytes for e in events if isinstance(e, dsec.Dropped))
    kept = sum(len(e.data) for e in events if isinstance(e, dsec.Output) and e.stream == "stderr")
    assert lost + kept == 20_000_000 and lost > 0


def test_wait_keeps_the_output(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo out; echo err >&2")
    assert process.wait().exit_code == 0
    assert process.wait(timeout=1).exit_code == 0
    assert (process.stdout.read(), process.stderr.read()) == ("out\n", "err\n")


def test_kill_and_signal_and_a_patience_that_ends(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 100 & sleep 100")
    with pytest.raises(dsec.DeadlineExceeded):
        process.wait(timeout=0.2)
    process.kill()
    ended = process.wait()
    assert (ended.exit_code, ended.reason) == (137, "signal")
    process = sandbox.spawn(["sleep", "100"])
    process.signal(15)
    assert process.wait().exit_code == 143
    with pytest.raises(dsec.InvalidArgument):
        process.signal(99)
