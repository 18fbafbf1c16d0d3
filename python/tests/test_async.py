"""The async face: the same verbs, cancellation, and many at once from one loop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import dsec
import pytest
from dsec import AsyncSandbox


async def test_the_tour(asandbox: AsyncSandbox, tmp_path: Path) -> None:
    sb = asandbox
    assert (await sb.exec(["python3", "-c", "print('hi there')"])).check().stdout == "hi there\n"
    assert (await sb.exec("exit 3")).exit_code == 3
    process = await sb.spawn(["cat"], stdin="pipe")
    await process.stdin.write("one\ntwo\n")
    await process.stdin.close()
    assert [line async for line in process.stdout.lines()] == ["one", "two"]
    assert (await process.wait()).exit_code == 0
    events = [event async for event in await sb.spawn("echo a; echo b >&2")]
    assert {e.text for e in events if isinstance(e, dsec.Output)} == {"a\n", "b\n"}
    exec_id = await sb.detach("sleep 0.3; echo late")
    assert await (await sb.attach(exec_id)).stdout.read() == "late\n"
    assert (await sb.exec_info(exec_id)).command == "sleep 0.3; echo late"
    assert exec_id in [known.exec_id for known in await sb.execs()]
    files = sb.files
    await files.write("d/a", "x")
    await files.append("d/a", b"y")
    assert await files.read_text("d/a") == "xy" and await files.exists("d") and not await files.exists("e")
    assert [f.name for f in await files.list("d")] == ["a"]
    await files.move("d/a", "d/b")
    await files.download_dir("d", tmp_path / "t")
    await files.upload_dir(tmp_path / "t", "u")
    assert (await files.stat("u/b")).size == 2
    await files.remove("u", recursive=True)
    async with await files.watch("d") as watch:
        await files.write("d/c", "")
        async for event in watch:
            if event.name == "c":
                break
    assert (await sb.info()).state == "running"
    assert (await sb.set_ttl(60)).id == sb.id
    assert (await AsyncSandbox.connect(sb.id)).id == sb.id
    assert sb.id in [s.id for s in await AsyncSandbox.list()]
    assert "debian" in [i.name for i in await dsec.AsyncImages().list()]
    with pytest.raises(dsec.NotFound):
        await dsec.AsyncImages().inspect("nosuch")
    with pytest.raises((dsec.NotFound, dsec.Conflict)):
        await sb.ports[1].get("/")


async def test_a_cancelled_wait_kills_nothing(asandbox: AsyncSandbox) -> None:
    task = asyncio.create_task(asandbox.exec("sleep 1; echo done > done"))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asandbox.exec(["sleep", "5"]), 0.1)
    deadline = time.monotonic() + 30
    while not await asandbox.files.exists("done"):
        assert time.monotonic() < deadline, "the command was killed"
        await asyncio.sleep(0.05)


async def test_no_output_is_lost_to_a_reader_that_was_cancelled(asandbox: AsyncSandbox) -> None:
    process = await asandbox.spawn("for i in $(seq 300); do echo $i; sleep 0.003; done")
    text = ""
    while True:
        try:
            text += await asyncio.wait_for(anext(process.stdout), 0.002)
        except asyncio.TimeoutError:
            continue
        except StopAsyncIteration:
            break
    assert text == "".join(f"{i}\n" for i in range(1, 301))


async def test_a_cancelled_create_leaves_no_sandbox(node: object) -> None:
    made = []

    async def create() -> None:
        made.append(await AsyncSandbox.create("debian", labels={"cancelled": "1"}))

    for wait in [0, 0.001, 0.003, 0.005, 0.01, 0.02]:
        tasks = [asyncio.create_task(create()) for _ in range(5)]
        await asyncio.sleep(wait)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(e is None or isinstance(e, asyncio.CancelledError) for e in done)
    assert len(made) < 30
    # Those that came before their cancel are ours; all the others are stopped by themselves.
    await asyncio.gather(*[sandbox.stop() for sandbox in made])
    deadline = time.monotonic() + 20
    while await AsyncSandbox.list(label="cancelled=1"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_batch_that_is_left_is_stopped(node: object) -> None:
    batch = AsyncSandbox.create_many(8, "debian", labels={"aleft": "1"})
    async for sandbox in batch:
        break
    await batch.aclose()
    deadline = time.monotonic() + 20
    while [s.id for s in await AsyncSandbox.list(label="aleft=1")] != [sandbox.id]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await sandbox.stop()


async def test_two_hundred_sandboxes_at_once(node: object) -> None:
    options = {"memory": "64MiB", "labels": {"many": "1"}}
    sandboxes = await asyncio.gather(*[AsyncSandbox.create("debian", **options) for _ in range(200)])  # type: ignore[arg-type]
    try:
        outs = await asyncio.gather(*[s.exec(["hostname"]) for s in sandboxes])
        assert all(out.ok for out in outs)
    finally:
        await asyncio.gather(*[s.stop() for s in sandboxes])
    assert len({s.id for s in sandboxes}) == 200


async def test_a_thousand_commands_over_twenty_sandboxes_from_one_loop(node: object) -> None:
    sandboxes = [s async for s in AsyncSandbox.create_many(20, "debian")]
    try:
        began = time.monotonic()
        texts = [f"run {i}" for i in range(1000)]
        runs = [sandboxes[i % 20].exec(["echo", text]) for i, text in enumerate(texts)]
        outs = await asyncio.gather(*runs)
        assert [out.stdout for out in outs] == [f"{text}\n" for text in texts]
        print(f"1000 execs: {time.monotonic() - began:.1f} s")
        # All alive together: none has ended when the last has started.
        waiting = [await s.spawn("read line; echo $line", stdin="pipe") for s in sandboxes for _ in range(10)]
        await asyncio.gather(*[p.stdin.write("go\n") for p in waiting])
        assert await asyncio.gather(*[p.stdout.read() for p in waiting]) == ["go\n"] * 200
    finally:
        await asyncio.gather(*[s.stop() for s in sandboxes])


async def test_the_loop_stays_awake_while_commands_run(asandbox: AsyncSandbox) -> None:
    worst = 0.0
    done = asyncio.Event()

    async def beat() -> None:
        nonlocal worst
        while not done.is_set():
            before = time.monotonic()
            await asyncio.sleep(0.01)
            worst = max(worst, time.monotonic() - before)

    heart = asyncio.create_task(beat())
    await asyncio.gather(*[asandbox.exec("sleep 0.5") for _ in range(50)])
    done.set()
    await heart
    assert worst < 2, f"the loop was held up for {worst:.2f} s"


def test_loops_come_and_go(node: object) -> None:
    async def once() -> str:
        async with await AsyncSandbox.create("debian") as sandbox:
            return (await sandbox.exec(["echo", "x"])).stdout

    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        assert asyncio.run(once()) == "x\n"
    # Idle connections are kept; an eventfd for each loop is not.
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before + 4
