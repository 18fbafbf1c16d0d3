"""What a command gives is its output and nothing of ours, whatever is in the command and whatever it does to the shell."""

import pytest
from swerex.exceptions import BashIncorrectSyntaxError, NonZeroExitCodeError


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo a\tb; printf 'x\\ty'", "a\tb\nx\ty".replace("a\tb", "a b")),
        ("cat <<'EOF'\n\ttab\n\n  !bang! $x `y` \\ \" '\nEOF", "\ttab\n\n  !bang! $x `y` \\ \" '\n"),
        ("echo 'a!b' \"c!d\"", "a!b c!d\n"),
        ("printf '%s' 'é…\x01\x7f\x03\x04' | od -An -tx1", " c3 a9 e2 80 a6 01 7f 03 04\n"),
        ("printf 'a\\r\\n\\033[31mred\\033[0m'", "a\r\nred"),
        ("printf '\\xff\\xe2'", "\\xff\\xe2"),
        ("printf '  \\n\\n x'", "  \n\n x"),
        ("f() {\n  echo $1\n}\nf 1\n\nf 2 # comment\n", "1\n2\n"),
        ("echo \\\n joined", "joined\n"),
        ("alias hi='echo hello'\nhi", "hello\n"),
        ("# nothing", ""),
        ("", ""),
        ("\n \n", ""),
        ("[[ a == a ]] && A=(1 2) && echo ${A[1]}", "2\n"),
        ("echo out; echo err >&2", "out\nerr\n"),
        ("stty size", "24 80\n"),
        ("id -un; pwd", "user\n/home/user\n"),
    ],
)
async def test_output_is_exact(shell, command, output):
    done = await shell.run(command)
    assert (done.output, done.exit_code, done.expect_string) == (output, 0, "SHELLPS1PREFIX")


async def test_commands_of_any_length(shell):
    assert await shell.out("echo '%s' | wc -c" % ("z" * 500_000)) == "500001\n"
    assert await shell.out("\n".join(f"x{n}={n}" for n in range(5000)) + "\necho $x4999") == "4999\n"
    assert await shell.out("printf '%s' '" + "é" * 10_000 + "' | wc -m") == "10000\n"


async def test_very_much_output_keeps_head_and_tail(shell):
    output = await shell.out("echo first; yes 0123456789 | head -c 30000000; echo last", timeout=60)
    assert output.startswith("first\n0123456789\n") and output.endswith("last\n")
    assert "bytes left out by DSec" in output and len(output) < 13_000_000
    assert await shell.out("echo next") == "next\n"
    done = await shell.execute("yes 0123456789 | head -c 30000000", shell=True, timeout=60)
    assert "bytes left out by DSec" in done.stdout and len(done.stdout) < 9_000_000


async def test_the_prompt_is_nobodys_business(shell):
    for change in ("PS1='mine> '", "PS1='(venv) '$PS1", "unset PS1", "source ~/.bashrc", "export PS2='more> '"):
        assert await shell.out(change + "; echo hi") == "hi\n", change
        assert await shell.out("cat <<EOF\na\nb\nEOF") == "a\nb\n", change
    assert "_DSEC_" not in await shell.out("env; set")
    assert await shell.out("echo SHELLPS1PREFIX; echo UNIQUESTRING29234; echo EXITCODEEND") == (
        "SHELLPS1PREFIX\nUNIQUESTRING29234\nEXITCODEEND\n"
    )
    # A mark, told by the command itself: it deceives its own reader at most, and the session goes on.
    await shell.run("echo _DSEC_p0123456789abcdef:0: _DSEC_t0123456789abcdef:0:", check="silent")
    assert await shell.out("echo next") == "next\n"


async def test_a_shell_keeps_its_state(shell):
    await shell.run("cd /tmp; export A=1; f() { echo $A; }; set -u")
    assert await shell.out("pwd; f") == "/tmp\n1\n"
    assert (await shell.run("echo $nothing", check="silent")).exit_code == 1
    assert (await shell.run("set +u; echo ${x:?no}", check="silent")).exit_code == 1
    assert await shell.out("exec 7>/tmp/seven; echo to seven >&7; cat /tmp/seven") == "to seven\n"
    assert await shell.out("exec >/tmp/all; echo hidden") == ""
    assert await shell.out("exec >/dev/tty; cat /tmp/all") == "hidden\n"


async def test_exit_codes(shell):
    for code in (0, 1, 7, 127, 255):
        assert (await shell.run(f"(exit {code})", check="silent")).exit_code == code
        assert (await shell.run(f"(exit {code})", check="ignore")).exit_code is None
    assert (await shell.run("false\ntrue")).exit_code == 0
    assert (await shell.run("sh -c 'kill -9 $$'", check="silent")).exit_code == 137
    with pytest.raises(NonZeroExitCodeError, match=r"^mine: Command 'echo why; false' failed with exit code 1") as e:
        await shell.run("echo why; false", error_msg="mine")
    assert "'why\\n'" in str(e.value)
    assert await shell.out("echo next") == "next\n"


async def test_syntax_errors_are_told_before_anything_runs(shell):
    for bad in ("(a", "a='", "for", "echo $(", "if true; then", "echo ok; )"):
        with pytest.raises(BashIncorrectSyntaxError) as e:
            await shell.run(bad)
        assert "bash: line" in e.value.extra_info["bash_stderr"] and e.value.extra_info["bash_stdout"] == ""
    assert await shell.out("echo next") == "next\n"


async def test_jobs_in_the_background(shell):
    assert (await shell.out("(sleep 0.2; echo late) &")).startswith("[1] ")
    assert "late\n" in await shell.out("sleep 0.5; echo now")
    await shell.out("echo again")
    assert await shell.out("echo quiet") == "quiet\n"


async def test_a_shell_inside_the_shell(shell):
    assert await shell.out("bash --norc") == ""
    assert await shell.out("inner=1; echo $SHLVL") == "2\n"
    assert await shell.out("exit") == "exit\n"
    assert await shell.out("echo $SHLVL$inner") == "1\n"
