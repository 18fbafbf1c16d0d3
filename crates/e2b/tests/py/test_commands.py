"""Commands: what they print, how they end, what can be done to them meanwhile."""

import time

import pytest
from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
)


def test_output_and_exit_code(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_a_failure_is_an_exception_with_all_that_was_said(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("echo out; echo err >&2; exit 7")
    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (7, "out\n", "err\n")


def test_a_command_killed_by_a_signal_is_128_and_n(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("kill -TERM $$; sleep 5")
    assert caught.value.exit_code == 143


def test_a_command_that_is_not_there(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("no-such-command")
    assert caught.value.exit_code == 127 and "not found" in caught.value.stderr


def test_shell_syntax_and_text_of_any_kind(sandbox):
    text = "naïve 東京 🎉 'single' \"double\" $HOME `x`"
    result = sandbox.commands.run("cat <<'EOF'\n" + text + "\nEOF")
    assert result.stdout == text + "\n"
    assert sandbox.commands.run("for i in 1 2 3; do echo $i; done | tail -n 1").stdout == "3\n"


def test_bytes_that_are_not_utf8_come_as_replacement(sandbox):
    assert "\ufffd" in sandbox.commands.run(r"printf 'a\377b'").stdout


def test_the_default_user_is_not_root_and_at_home(sandbox):
    result = sandbox.commands.run("whoami; pwd; echo $HOME; touch ~/mine && stat -c %U ~/mine")
    assert result.stdout.split() == ["user", "/home/user", "/home/user", "user"]


def test_root_where_asked(sandbox):
    assert sandbox.commands.run("id -u; id -un", user="root").stdout.split() == ["0", "root"]


def test_directory(sandbox):
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("pwd", cwd="~", user="root").stdout == "/root\n"


def test_a_directory_that_is_not_there(sandbox):
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("pwd", cwd="/no/such/directory")


def test_a_user_that_is_not_there(sandbox):
    with pytest.raises(SandboxException, match="nobody-such"):
        sandbox.commands.run("true", user="nobody-such")


def test_environment(sandbox):
    result = sandbox.commands.run("echo $A-$B", envs={"A": "x y", "B": "東"})
    assert result.stdout == "x y-東\n"


def test_output_is_streamed_as_it_comes(sandbox):
    seen = []
    begun = time.monotonic()
    result = sandbox.commands.run(
        "echo one; echo bad >&2; sleep 1; echo two",
        on_stdout=lambda text: seen.append(("out", text, time.monotonic() - begun)),
        on_stderr=lambda text: seen.append(("err", text, 0)),
    )
    assert result.stdout == "one\ntwo\n"
    first, last = [entry for entry in seen if entry[0] == "out"][:: len(seen) - 2]
    assert first[1] == "one\n" and last[1] == "two\n" and last[2] - first[2] > 0.7
    assert ("err", "bad\n", 0) in seen


def test_big_output_is_whole(sandbox):
    result = sandbox.commands.run("seq 1 400000")
    lines = result.stdout.split()
    assert len(lines) == 400_000 and lines[-1] == "400000"


def test_a_timeout_kills_the_tree(sandbox):
    # The client gives up at the same moment as the node; an older one then lets its transport's error through.
    with pytest.raises(Exception) as caught:
        sandbox.commands.run("sleep 4321 & sleep 4321", timeout=1)
    assert "Timeout" in type(caught.value).__name__, caught.value
    for _ in range(50):
        left = sandbox.commands.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 4321' || true").stdout
        if left == "0\n":
            return
        time.sleep(0.1)
    raise AssertionError(f"{left} left")


def test_no_timeout_where_zero(sandbox):
    assert sandbox.commands.run("sleep 1; echo done", timeout=0).stdout == "done\n"


def test_background_and_wait(sandbox):
    handle = sandbox.commands.run("sleep 0.5; echo done", background=True)
    assert handle.pid > 0
    assert handle.wait().stdout == "done\n"


def test_list_shows_what_runs(sandbox):
    handle = sandbox.commands.run("sleep 100", background=True)
    mine = [p for p in sandbox.commands.list() if p.pid == handle.pid]
    assert len(mine) == 1 and mine[0].cmd == "/bin/bash" and "sleep 100" in mine[0].args
    assert handle.kill()
    with pytest.raises(CommandExitException):
        handle.wait()
    assert handle.pid not in [p.pid for p in sandbox.commands.list()]


def test_kill(sandbox):
    handle = sandbox.commands.run("sleep 100", background=True)
    assert sandbox.commands.kill(handle.pid)
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert caught.value.exit_code == 137
    assert not sandbox.commands.kill(handle.pid)
    assert not sandbox.commands.kill(999_999)


def test_a_command_outlives_its_client_and_is_found_again(sandbox):
    handle = sandbox.commands.run("for i in $(seq 1 30); do echo $i; sleep 0.1; done", background=True)
    handle.disconnect()
    time.sleep(0.5)
    again = sandbox.commands.connect(handle.pid)
    assert again.pid == handle.pid
    result = again.wait()
    assert result.exit_code == 0 and result.stdout.split()[-1] == "30"


def test_connecting_to_what_was_never_there(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)


def test_stdin(sandbox):
    handle = sandbox.commands.run("read a; read b; echo $a-$b", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    sandbox.commands.send_stdin(handle.pid, "zwei 東\n")
    assert handle.wait().stdout == "one-zwei 東\n"


def test_stdin_keeps_its_order(sandbox):
    handle = sandbox.commands.run("head -n 60", background=True, stdin=True)
    for n in range(60):
        sandbox.commands.send_stdin(handle.pid, f"{n}\n")
    assert handle.wait().stdout.split() == [str(n) for n in range(60)]


def test_stdin_is_at_its_end_unless_asked_for(sandbox):
    assert sandbox.commands.run("cat; echo end", timeout=20).stdout == "end\n"


def test_closing_stdin_is_the_end_of_input(sandbox):
    if not hasattr(sandbox.commands, "close_stdin"):
        pytest.skip("this version cannot close standard input")
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "text\n")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "text\nend\n"


def test_input_in_one_stream(sandbox):
    if not hasattr(sandbox.commands, "stream_input"):
        pytest.skip("this version cannot stream input")
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, (b"x" * 10_000 for _ in range(100)))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "1000000"


def test_input_to_what_has_ended(sandbox):
    handle = sandbox.commands.run("true", background=True, stdin=True)
    handle.wait()
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(handle.pid, "x")


def test_a_process_left_behind_does_not_hold_the_answer(sandbox):
    begun = time.monotonic()
    assert sandbox.commands.run("sleep 30 & echo started").stdout == "started\n"
    assert time.monotonic() - begun < 10


def test_many_commands_at_once(sandbox):
    handles = [sandbox.commands.run(f"sleep 0.5; echo {n}", background=True) for n in range(20)]
    assert len({handle.pid for handle in handles}) == 20
    assert [handle.wait().stdout for handle in handles] == [f"{n}\n" for n in range(20)]
