"""The asynchronous half of the package."""

import asyncio

import pytest
from e2b import AsyncSandbox, CommandExitException, NotFoundException, PtySize, SandboxQuery, TimeoutException


def test_commands(run):
    async def work(box):
        result = await box.commands.run("echo out; echo err >&2; pwd")
        assert (result.stdout, result.stderr) == ("out\n/home/user\n", "err\n")
        with pytest.raises(CommandExitException) as caught:
            await box.commands.run("exit 5", user="root")
        assert caught.value.exit_code == 5

    run(work)


def test_callbacks_stdin_and_kill(run):
    async def work(box):
        seen = []

        async def keep(text):
            seen.append(text)

        handle = await box.commands.run("cat", background=True, stdin=True, on_stdout=keep)
        await box.commands.send_stdin(handle.pid, "hello\n")
        for _ in range(100):
            if "".join(seen) == "hello\n":
                break
            await asyncio.sleep(0.05)
        assert "".join(seen) == "hello\n"
        assert await handle.kill()
        with pytest.raises(CommandExitException) as caught:
            await handle.wait()
        assert caught.value.exit_code == 137

    run(work)


def test_timeout_and_disconnect(run):
    async def work(box):
        with pytest.raises(Exception) as caught:
            await box.commands.run("sleep 100", timeout=1)
        assert "Timeout" in type(caught.value).__name__, caught.value
        handle = await box.commands.run("sleep 1; echo late", background=True)
        await handle.disconnect()
        again = await box.commands.connect(handle.pid)
        assert (await again.wait()).stdout == "late\n"
        with pytest.raises(NotFoundException):
            await box.commands.connect(999_999)

    run(work)


def test_a_hundred_commands_at_once(run):
    async def work(box):
        results = await asyncio.gather(*(box.commands.run(f"echo {n}") for n in range(100)))
        assert [r.stdout for r in results] == [f"{n}\n" for n in range(100)]

    run(work)


def test_files(run):
    async def work(box):
        await box.files.write("a.txt", "text")
        await box.files.write("b.bin", b"\xff\x00" * 1000)
        assert await box.files.read("a.txt") == "text"
        assert bytes(await box.files.read("b.bin", format="bytes")) == b"\xff\x00" * 1000
        parts = [part async for part in await box.files.read("b.bin", format="stream")]
        assert b"".join(parts) == b"\xff\x00" * 1000
        names = {entry.name for entry in await box.files.list("/home/user")}
        assert {"a.txt", "b.bin"} <= names
        assert await box.files.exists("a.txt") and not await box.files.exists("nothing")
        assert await box.files.make_dir("d") and not await box.files.make_dir("d")
        await box.files.rename("a.txt", "d/c.txt")
        assert (await box.files.get_info("d/c.txt")).size == 4
        await box.files.remove("d")
        assert not await box.files.exists("d")

    run(work)


def test_watch_is_a_stream(run):
    async def work(box):
        events = asyncio.Queue()
        await box.files.make_dir("/tmp/w")
        handle = await box.files.watch_dir("/tmp/w", on_event=events.put_nowait)
        await box.files.write("/tmp/w/x", "y")
        seen = []
        while "write" not in seen:
            event = await asyncio.wait_for(events.get(), 10)
            assert event.name == "x"
            seen.append(event.type.value)
        await handle.stop()

    run(work)


def test_a_watch_has_a_time(run):
    async def work(box):
        ended = asyncio.get_running_loop().create_future()
        await box.files.watch_dir("/tmp", on_event=lambda _: None, on_exit=ended.set_result, timeout=1)
        assert isinstance(await asyncio.wait_for(ended, 15), TimeoutException)

    run(work)


def test_pty(run):
    async def work(box):
        seen = bytearray()
        handle = await box.pty.create(size=PtySize(rows=24, cols=80), on_data=seen.extend)
        await box.pty.send_stdin(handle.pid, b"echo sum-$((20+22))\n")
        for _ in range(200):
            if b"sum-42" in seen:
                break
            await asyncio.sleep(0.05)
        assert b"sum-42" in seen
        await box.pty.resize(handle.pid, PtySize(rows=40, cols=100))
        assert await box.pty.kill(handle.pid)

    run(work)


def test_lifecycle(run, loop):
    async def work(box):
        assert await box.is_running()
        await box.set_timeout(500)
        info = await box.get_info()
        assert info.sandbox_id == box.sandbox_id
        pages = AsyncSandbox.list(query=SandboxQuery(metadata={}))
        listed = []
        while pages.has_next:
            listed += [i.sandbox_id for i in await pages.next_items()]
        assert box.sandbox_id in listed
        same = await AsyncSandbox.connect(box.sandbox_id)
        assert (await same.commands.run("echo same")).stdout == "same\n"
        assert await box.kill()
        assert not await box.is_running()

    run(work)


def test_twenty_sandboxes_at_once(loop):
    async def work():
        async def one(n):
            box = await AsyncSandbox.create(timeout=120)
            try:
                return (await box.commands.run(f"echo {n}")).stdout
            finally:
                await box.kill()

        assert await asyncio.gather(*(one(n) for n in range(20))) == [f"{n}\n" for n in range(20)]

    loop.run_until_complete(work())
