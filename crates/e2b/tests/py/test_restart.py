"""The node's server is killed (`kill -9`) while clients are in the middle, and started again: the same sandboxes and the
same commands, by their ids, and with the tokens of before.
"""

import asyncio
import threading
import time

import pytest
from e2b import AsyncSandbox, CommandExitException, Sandbox

# Told twice, since the output of the time when nobody listened is not told again by this API.
LINES = "for n in $(seq 50); do echo line $n | tee -a told; sleep 0.1; done; exit 9"
TOLD = [f"line {n}" for n in range(1, 51)]


def soon(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_commands_go_on(server):
    boxes = [Sandbox.create(timeout=300) for _ in range(3)]
    try:
        one, two, _ = boxes
        one.files.write("kept", "kept")
        handles = [box.commands.run(LINES, background=True) for box in boxes]
        quiet = two.commands.run("read line; echo got $line >got; sleep 100", background=True, stdin=True)
        cut = []

        def wait():
            try:
                handles[0].wait()
            except CommandExitException as e:
                cut.append(e)
            except Exception as e:
                cut.append(e)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(1)
        server("kill")
        waiting.join(20)
        assert len(cut) == 1 and not isinstance(cut[0], CommandExitException), cut
        server("up")

        assert {box.sandbox_id for box in boxes} <= {info.sandbox_id for info in Sandbox.list().next_items()}
        assert one.is_running() and one.files.read("kept") == "kept"
        assert one.commands.run("echo new").stdout == "new\n"
        assert Sandbox.connect(one.sandbox_id).commands.run("echo new").stdout == "new\n"
        for box, handle in zip(boxes, handles):
            assert handle.pid in [process.pid for process in box.commands.list()]
        again = [box.commands.connect(handle.pid) for box, handle in zip(boxes, handles)]
        for box, handle in zip(boxes, again):
            with pytest.raises(CommandExitException) as end:
                handle.wait()
            assert end.value.exit_code == 9
            heard = end.value.stdout.split("\n")[:-1]
            assert heard and TOLD[-len(heard) :] == heard
            assert box.files.read("told").split("\n")[:-1] == TOLD
        two.commands.send_stdin(quiet.pid, "input\n")
        soon(lambda: two.files.exists("got") and two.files.read("got") == "got input\n")
        assert two.commands.kill(quiet.pid)
        soon(lambda: two.commands.list() == [])
    finally:
        for box in boxes:
            assert box.kill()


def test_commands_go_on_for_asyncio(server, run):
    async def work(box):
        handle = await box.commands.run(LINES, background=True)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server, "kill")
        with pytest.raises(Exception):  # noqa: B017, PT011: of the HTTP client, by version
            await asyncio.wait_for(handle.wait(), 20)
        await asyncio.to_thread(server, "up")
        again = await AsyncSandbox.connect(box.sandbox_id)
        with pytest.raises(CommandExitException) as end:
            await (await again.commands.connect(handle.pid)).wait()
        assert end.value.exit_code == 9 and end.value.stdout.endswith("line 49\nline 50\n")
        assert (await box.files.read("told")).split("\n")[:-1] == TOLD

    run(work)
