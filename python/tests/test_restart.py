"""Case 68 by this door: the server is killed (`kill -9`) and started again while a program uses the package. What was
begun goes on: the same sandboxes, and no output is lost, whether or not the program had waited for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import dsec
import pytest
from conftest import Node
from dsec import AsyncSandbox, Sandbox

LINES = "for n in $(seq 40); do echo line $n; echo err $n >&2; sleep 0.1; done; exit 9"
OUT = "".join(f"line {n}\n" for n in range(1, 41))
ERR = "".join(f"err {n}\n" for n in range(1, 41))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def restart(node: Node) -> Callable[[float], None]:
    def restart(down_s: float = 0) -> None:
        address = urlsplit(dsec.Client().url).netloc
        pid = node.pid()
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(down_s)
        node.cli("up", "--detach", "--listen", address)

    return restart


def test_case_68_what_was_begun_goes_on(node: Node, restart: Callable[[float], None]) -> None:
    boxes = list(Sandbox.create_many(6, "debian"))
    try:
        boxes[0].files.write("/tmp/kept", "kept")
        detached = [box.detach(LINES) for box in boxes]
        read = boxes[1].spawn(LINES)
        lines = read.stdout.lines()
        seen = [next(lines) for _ in range(3)]
        waited: list[dsec.ExecResult] = []
        # A plain call, in the middle of its wait.
        waiting = threading.Thread(target=lambda: waited.append(boxes[2].exec(LINES)))
        waiting.start()
        time.sleep(0.5)
        restart(1)

        assert {info.id for info in Sandbox.list()} >= {box.id for box in boxes}
        # The same objects, and those of a program that comes later.
        for box in [boxes[0], Sandbox.connect(boxes[0].id)]:
            assert box.files.read_text("/tmp/kept") == "kept"
            assert box.exec("echo new").stdout == "new\n"
        assert "\n".join(seen + list(lines)) + "\n" == OUT
        assert read.wait().exit_code == 9
        waiting.join(60)
        assert [(w.stdout, w.stderr, w.exit_code) for w in waited] == [(OUT, ERR, 9)]
        for box, exec_id in zip(boxes, detached):
            process = box.attach(exec_id)
            assert (process.stdout.read(), process.stderr.read(), process.wait().exit_code) == (OUT, ERR, 9)
    finally:
        for box in boxes:
            box.stop()


def test_a_terminal_and_a_server_inside_go_on(sandbox: Sandbox, restart: Callable[[float], None]) -> None:
    sandbox.detach("cd /tmp && echo page >page && exec python3 -m http.server 8000")
    shell = sandbox.spawn(["bash", "--norc"], pty=True, env={"PS1": "", "TERM": "dumb"})
    shell.stdin.write("stty -echo; x=42; echo ready\n")
    text = ""
    while "\nready\r\n" not in text:
        text += next(shell.stdout)
    restart(0)
    # Over the connection that is gone nothing is written, and nothing is lost unseen.
    with pytest.raises(dsec.Conflict):
        shell.stdin.write("never\n")
    stdout, stderr = shell.offsets
    shell = sandbox.attach(shell.exec_id, stdout_offset=stdout, stderr_offset=stderr)
    shell.stdin.write("echo $((x + 1)); exit 3\n")
    assert shell.stdout.read() == "43\r\nexit\r\n"
    assert shell.wait().exit_code == 3
    assert sandbox.ports[8000].get("/page").text == "page\n"


async def test_case_68_for_asyncio(node: Node, restart: Callable[[float], None]) -> None:
    async with await AsyncSandbox.create("debian") as box:
        process = await box.spawn(LINES)
        waiting = asyncio.create_task(box.exec(LINES))
        first = await anext(aiter(process.stdout))
        # Begun too: a call that the server has not heard of is tried again for less than a second.
        while len(await box.execs()) < 2:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(restart, 1)
        assert first + await process.stdout.read() == OUT
        done = await waiting
        assert (done.stdout, done.stderr, done.exit_code) == (OUT, ERR, 9)
        assert (await box.exec("echo new")).stdout == "new\n"
