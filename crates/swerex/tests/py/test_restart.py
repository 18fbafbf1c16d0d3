"""The node's server is killed (`kill -9`) while clients are in the middle, and started again: the same sandboxes, the
same sessions, and no output is lost.
"""

import asyncio

import pytest
import requests
from conftest import HEADERS, NODE, Rex, make_sandbox, stop_sandbox
from swerex.exceptions import CommandTimeoutError, SessionDoesNotExistError
from swerex.runtime.abstract import WriteFileRequest

LINES = "for n in $(seq 30); do echo line $n; sleep 0.1; done"
TOLD = "".join(f"line {n}\n" for n in range(1, 31))


async def cut_off(work):
    with pytest.raises(Exception) as e:  # noqa: PT011: of the HTTP client, by version
        await work
    assert not isinstance(e.value, (CommandTimeoutError, SessionDoesNotExistError))


async def test_sessions_go_on(server):
    """Six at once: idle, in a command, whose command ends meanwhile, whose client timed out, in a program, half made."""
    boxes = [Rex(make_sandbox()) for _ in range(6)]
    idle, long, short, late, program, half = boxes
    try:
        await asyncio.gather(*(box.create() for box in boxes[:5]))
        await idle.run("cd /tmp; x=1; echo taken")
        await long.run("echo taken")
        with pytest.raises(CommandTimeoutError):
            await late.run("echo kept; sleep 3; echo late", timeout=0.3)
        await program.run("python3", is_interactive_command=True, expect=[">>> "])
        await program.run("x = 6 * 7", is_interactive_command=True, expect=[">>> "])
        await half.runtime.write_file(WriteFileRequest(path="/tmp/slow", content="sleep 60"))
        cut = [
            asyncio.create_task(cut_off(work))
            for work in (
                long.run(LINES, timeout=60),
                short.run("echo a; sleep 1.5; echo b", timeout=60),
                half.create(startup_source=["/tmp/slow"], startup_timeout=60),
            )
        ]
        await asyncio.sleep(1)
        server("kill")
        await asyncio.wait_for(asyncio.gather(*cut), 20)
        await asyncio.sleep(1)
        server("up")

        assert await idle.out("echo $x; pwd") == "1\n/tmp\n"
        assert await long.out("echo end") == TOLD + "end\n"
        assert await long.out("echo more") == "more\n"
        assert await short.out("echo c") == "a\nb\nc\n"
        assert await late.out("echo end") == "kept\nlate\nend\n"
        # Told again from the program's start: how far it was read was the server's.
        said = await program.run("print(x)", is_interactive_command=True, expect=["42\r\n>>> "])
        assert "Python 3" in said.output
        await program.run("quit()", is_interactive_quit=True)
        assert await program.out("echo back") == "back\n"
        with pytest.raises(SessionDoesNotExistError):
            await half.run("true")
        await half.create()
        assert await half.out("echo whole") == "whole\n"
    finally:
        for box in boxes:
            stop_sandbox(box.sandbox)


async def test_what_runs_can_be_interrupted_afterwards(shell, server):
    running = asyncio.create_task(cut_off(shell.run("echo begun; sleep 1000", timeout=60)))
    await asyncio.sleep(0.5)
    server("kill")
    await asyncio.wait_for(running, 20)
    server("up")
    assert (await shell.interrupt(timeout=5)).output == "begun"
    assert await shell.out("echo next") == "next\n"


async def test_a_command_that_is_sent_again_runs_once(sandbox, server):
    headers = {**HEADERS, "X-Request-ID": "the same"}
    body = {"command": "echo run >>/tmp/runs; sleep 2; cat /tmp/runs", "shell": True}

    def execute():
        return requests.post(f"{NODE}/swerex/{sandbox}/execute", headers=headers, json=body, timeout=30)

    first = asyncio.create_task(asyncio.to_thread(execute))
    await asyncio.sleep(0.7)
    server("kill")
    with pytest.raises(requests.ConnectionError):
        await first
    server("up")
    again = await asyncio.to_thread(execute)
    assert again.json() == {"stdout": "run\n", "stderr": "", "exit_code": 0}
