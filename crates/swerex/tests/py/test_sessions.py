"""Sessions: made, named, ended; time that runs out, interrupts, programs that talk."""

import asyncio
import time

import pexpect
import pytest
import requests
from conftest import HEADERS, Rex
from swerex.exceptions import (
    CommandTimeoutError,
    NoExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import CloseBashSessionRequest, CreateBashSessionRequest, WriteFileRequest


CATCHES = """python3 -c 'import signal, time
signal.signal(signal.SIGINT, lambda *_: print("caught", flush=True))
time.sleep(100)'"""


async def test_names(rex):
    names = ["default", "a b", "naïve \"quoted\" 'name'", "$(id)", "x" * 200]
    for name in names:
        await rex.create(session=name)
        assert await rex.out("echo $$ >/tmp/pid; echo ok", session=name) == "ok\n"
    with pytest.raises(SessionExistsError, match="session a b already exists"):
        await rex.create(session="a b")
    await rex.runtime.close_session(CloseBashSessionRequest(session="a b"))
    with pytest.raises(SessionDoesNotExistError, match="session 'a b' does not exist"):
        await rex.run("true", session="a b")
    with pytest.raises(SessionDoesNotExistError):
        await rex.interrupt(session="a b")
    await rex.create(session="a b")
    assert await rex.out("echo new", session="a b") == "new\n"
    # Another client, and another one's name for the same thing.
    assert await Rex(rex.sandbox).out("echo same", session="$(id)") == "same\n"


async def test_closing_closes_the_sessions_and_not_the_sandbox(rex):
    await rex.create()
    await rex.create(session="other")
    await rex.run("nohup sleep 1001 >/dev/null 2>&1 & sleep 0.3", session="other")
    await rex.runtime.close()
    for name in ("default", "other"):
        with pytest.raises(SessionDoesNotExistError):
            await rex.run("true", session=name)
    assert (await rex.runtime.is_alive()).is_alive
    left = (await rex.execute("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", shell=True)).stdout
    assert "bash" not in left.replace("/bin/sh", "") and "sleep 1001" in left
    await rex.runtime.close()


async def test_what_runs_is_hung_up(shell):
    with pytest.raises(CommandTimeoutError):
        await shell.run("sleep 1002", timeout=0.2)
    await shell.runtime.close_session(CloseBashSessionRequest())
    assert "sleep 1002" not in (await shell.execute("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", shell=True)).stdout


async def test_startup_files(rex):
    files = {"/tmp/a": "A=1; echo from a; PS1='a> '", "/tmp/b b": "B=2; printf 'from b'", "/tmp/slow": "sleep 5"}
    for path, content in files.items():
        await rex.runtime.write_file(WriteFileRequest(path=path, content=content))
    made = await rex.create(startup_source=["/tmp/a", "'/tmp/b b'"])
    assert made.output == "from a\nfrom b" and made.session_type == "bash"
    assert await rex.out("echo $A$B") == "12\n"
    assert "No such file" in (await rex.create(session="none", startup_source=["/tmp/none"])).output
    with pytest.raises(pexpect.TIMEOUT):
        await rex.runtime.create_session(
            CreateBashSessionRequest(session="slow", startup_source=["/tmp/slow"], startup_timeout=0.3)
        )
    with pytest.raises(SessionDoesNotExistError):
        await rex.run("true", session="slow")


async def test_bashrc_is_read_and_its_prompt_is_not_told(rex):
    await rex.runtime.write_file(WriteFileRequest(path=".bashrc", content="echo welcome\nR=1\nPS1='user@host:~$ '\n"))
    assert (await rex.create()).output == "welcome\n"
    assert await rex.out("echo $R") == "1\n"


async def test_output_that_was_not_waited_for_comes_with_the_next(shell):
    with pytest.raises(CommandTimeoutError, match=r"^timeout after 0.4 seconds while running command 'echo a; sleep 1"):
        await shell.run("echo a; sleep 1; echo b", timeout=0.4)
    assert await shell.out("echo c") == "a\nb\nc\n"
    assert await shell.out("echo d") == "d\n"


async def test_very_much_that_was_not_waited_for(shell):
    with pytest.raises(CommandTimeoutError):
        # All of it comes when nobody waits any more, however fast the machine is.
        await shell.run("sleep 1; yes 0123456789 | head -c 20000000; echo end", timeout=0.5)
    output = await shell.out("echo next", timeout=30)
    assert "bytes left out by DSec" in output and output.endswith("0123456789\n012345678end\nnext\n")
    assert await shell.out("echo more") == "more\n"


async def test_a_command_behind_one_that_runs_is_not_its_input(shell):
    with pytest.raises(CommandTimeoutError):
        await shell.run("cat", timeout=0.3)
    with pytest.raises(CommandTimeoutError):
        await shell.run("touch /tmp/ran", timeout=0.3)
    assert (await shell.interrupt()).output == ""
    assert (await shell.run("ls /tmp/ran", check="silent")).exit_code == 2


async def test_interrupts(shell):
    with pytest.raises(CommandTimeoutError):
        await shell.run("echo part; sleep 100", timeout=0.4)
    stopped = await shell.interrupt()
    assert (stopped.output, stopped.exit_code, stopped.expect_string) == ("part", 0, "SHELLPS1PREFIX")
    assert await shell.out("echo next") == "next\n"
    assert (await shell.interrupt()).output == ""
    assert await shell.out("echo next") == "next\n"
    with pytest.raises(CommandTimeoutError):
        await shell.run(CATCHES, timeout=0.6)
    assert (await shell.interrupt(expect=["ca.ght"], timeout=2)).expect_string == "ca.ght"
    # It has not ended.
    with pytest.raises(CommandTimeoutError):
        await shell.run("true", timeout=0.2)
    assert "Stopped" in (await shell.interrupt(n_retry=1)).output
    assert "next\n" in await shell.out("echo next")


async def test_an_interrupt_of_a_command_that_another_waits_for(shell):
    running = asyncio.create_task(shell.run("echo begun; sleep 100; echo never", check="silent", timeout=50))
    await asyncio.sleep(0.5)
    await shell.interrupt(timeout=5)
    done = await asyncio.wait_for(running, 10)
    assert done.output.strip() == "begun" and done.exit_code == 130
    assert await shell.out("echo next") == "next\n"


async def test_what_cannot_be_interrupted_is_killed(shell):
    with pytest.raises(CommandTimeoutError):
        await shell.run("sh -c \"trap '' INT; sleep 100; sleep 100\"", timeout=0.5)
    assert "Stopped" in (await shell.interrupt()).output
    assert "Killed" in await shell.out("sleep 0.2; echo next")


async def test_expected_words(shell):
    done = await shell.run("echo one; sleep 0.2; echo two; sleep 0.2; echo three", expect=["t.o", "two"], check="silent")
    assert (done.output, done.exit_code, done.expect_string) == ("one\n\nthree\n", 0, "t.o")
    done = await shell.run("echo one; sleep 3; echo two", expect=["on"], check="ignore")
    assert (done.output, done.exit_code, done.expect_string) == ("", None, "on")
    # What has not ended yet is waited for.
    assert await shell.out("echo next") == "e\ntwo\nnext\n"
    with pytest.raises(NoExitCodeError):
        await shell.run("echo one; sleep 3; echo two", expect=["one"])
    assert (await shell.run("echo one; sleep 0.1", expect=["never"])).output == "\ntwo\none\n"


async def test_a_program_that_talks(shell):
    async def python(line, **options):
        return (await shell.run(line, is_interactive_command=True, expect=[">>> "], **options)).output

    assert "Python 3" in await python("python3")
    assert await python("print(6 * 7)") == "42"
    assert await python("x = 5") == ""
    with pytest.raises(CommandTimeoutError):
        await python("import time; time.sleep(1); print('slept')", timeout=0.3)
    assert "slept" in await python("print(x)")
    done = await shell.run("quit()", is_interactive_quit=True)
    assert (done.exit_code, done.expect_string) == (0, "SHELLPS1PREFIX")
    assert await shell.out("echo back") == "back\n"


async def test_a_shell_that_exits_is_gone(shell):
    with pytest.raises(pexpect.EOF, match="exit code 7"):
        await shell.run("echo bye; exit 7")
    with pytest.raises(SessionDoesNotExistError):
        await shell.run("true")
    await shell.create()
    assert await shell.out("echo new") == "new\n"


async def test_a_client_that_leaves_leaves_its_output(shell, url):
    action = {"command": "echo a; sleep 1; echo b", "action_type": "bash"}
    with pytest.raises(requests.ReadTimeout):
        requests.post(f"{url}/run_in_session", headers=HEADERS, json=action, timeout=0.3)
    assert await shell.out("echo c") == "a\nb\nc\n"


async def test_a_session_does_one_thing_at_a_time(shell):
    outputs = await asyncio.gather(*(shell.out(f"sleep 0.05; echo {n}") for n in range(10)))
    assert outputs == [f"{n}\n" for n in range(10)]


async def test_there_are_at_most_64(rex):
    await rex.create(session="s")
    await asyncio.gather(*(rex.create(session=f"s{n}") for n in range(63)))
    with pytest.raises(Exception, match="429"):
        await rex.create(session="one more")
    start = time.monotonic()
    await rex.runtime.close()
    assert time.monotonic() - start < 10
    with pytest.raises(SwerexException):
        await rex.run("true", session="s")
