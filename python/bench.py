"""Figures of the Python package against a server that is up: `python3 python/bench.py`. Nothing is asserted.

The image is `debian`, or the one named as first argument. `cargo xtask bench --only doors.python` brings a server.
"""

from __future__ import annotations

import asyncio
import sys
import time

import dsec

IMAGE = sys.argv[1] if len(sys.argv) > 1 else "debian"
RUNS, WARM_UP = 500, 20
EXECS, EXEC_SANDBOXES, SANDBOXES = 10_000, 20, 1_000


def series(name: str, seconds: list[float]) -> dict[str, float]:
    ms = sorted(s * 1000 for s in seconds[WARM_UP:])
    at = {"min": ms[0], "p50": ms[len(ms) // 2], "p99": ms[len(ms) * 99 // 100]}
    return {f"{name}_ms_{key}": round(value, 3) for key, value in at.items()}


def exec_true() -> list[float]:
    seconds = []
    with dsec.Sandbox.create(IMAGE) as sandbox:
        for _ in range(RUNS + WARM_UP):
            began = time.perf_counter()
            sandbox.exec(["true"]).check()
            seconds.append(time.perf_counter() - began)
    return seconds


async def exec_true_async() -> list[float]:
    seconds = []
    async with await dsec.AsyncSandbox.create(IMAGE) as sandbox:
        for _ in range(RUNS + WARM_UP):
            began = time.perf_counter()
            (await sandbox.exec(["true"])).check()
            seconds.append(time.perf_counter() - began)
    return seconds


async def execs_at_once() -> float:
    sandboxes = [s async for s in dsec.AsyncSandbox.create_many(EXEC_SANDBOXES, IMAGE)]
    try:
        began = time.perf_counter()
        outs = await asyncio.gather(*[sandboxes[i % EXEC_SANDBOXES].exec(["true"]) for i in range(EXECS)])
        seconds = time.perf_counter() - began
        for out in outs:
            out.check()
        return seconds
    finally:
        await asyncio.gather(*[s.stop() for s in sandboxes])


async def sandboxes_at_once() -> float:
    async def one() -> dsec.AsyncSandbox:
        sandbox = await dsec.AsyncSandbox.create(IMAGE, memory="64MiB", cpu=0.1)
        (await sandbox.exec(["true"])).check()
        return sandbox

    began = time.perf_counter()
    made = await asyncio.gather(*[one() for _ in range(SANDBOXES)])
    seconds = time.perf_counter() - began
    await asyncio.gather(*[s.stop() for s in made])
    return seconds


def main() -> None:
    figures = series("python.exec_true", exec_true())
    figures |= series("python.exec_true_async", asyncio.run(exec_true_async()))
    figures["python.execs_10000_at_once_s"] = round(asyncio.run(execs_at_once()), 2)
    figures["python.sandboxes_1000_at_once_s"] = round(asyncio.run(sandboxes_at_once()), 2)
    for key, value in figures.items():
        print(f"bench: {key} {value}", flush=True)


if __name__ == "__main__":
    main()
