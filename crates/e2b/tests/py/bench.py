"""The stock package against our own API, and a thousand sandboxes from one event loop.

`cargo xtask e2b --bench`, or `cargo xtask bench --only doors.e2b`.
"""

import asyncio
import http.client
import json
import os
import time
from urllib.parse import urlsplit

from e2b import AsyncSandbox, Sandbox

RUNS = 300
SANDBOXES = 1000
AT_ONCE = 100


def tell(key, value):
    print(f"bench: e2b.{key} {value:.3f}", flush=True)


def measure(name, work, runs=RUNS):
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    tell(f"{name}_ms_p50", times[runs // 2])
    tell(f"{name}_ms_p99", times[runs * 99 // 100])
    return times[runs // 2]


def commands():
    place, key = urlsplit(os.environ["E2B_API_URL"]), os.environ["E2B_API_KEY"]
    connection = http.client.HTTPConnection(place.hostname, place.port)
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    measure("create_and_kill", lambda: Sandbox.create(timeout=300).kill(), 50)
    sandbox = Sandbox.create(timeout=300)

    def native(*argv):
        body = json.dumps({"command": argv})
        connection.request("POST", f"/v1/sandboxes/{sandbox.sandbox_id}/exec", body, headers)
        answer = connection.getresponse()
        assert json.loads(answer.read())["exit"]["code"] == 0

    measure("native_exec_true", lambda: native("true"))
    # What the package runs for "true".
    ours = measure("native_exec_bash_true", lambda: native("/bin/bash", "-l", "-c", "true"))
    theirs = measure("run_true", lambda: sandbox.commands.run("true"))
    sandbox.files.write("/tmp/x", "x")
    measure("read_file", lambda: sandbox.files.read("/tmp/x"))
    sandbox.kill()
    tell("run_over_native_ratio", theirs / ours)


async def many():
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(n):
        async with turn:
            sandbox = await AsyncSandbox.create(timeout=900)
            result = await sandbox.commands.run(f"echo {n}", timeout=120)
            assert result.stdout == f"{n}\n"
            return sandbox

    async def end(sandbox):
        async with turn:
            assert await sandbox.kill()

    begun = time.monotonic()
    sandboxes = await asyncio.gather(*(one(n) for n in range(SANDBOXES)))
    assert len({sandbox.sandbox_id for sandbox in sandboxes}) == SANDBOXES
    made = time.monotonic()
    await asyncio.gather(*(end(sandbox) for sandbox in sandboxes))
    ended = time.monotonic()
    tell(f"sandboxes_{SANDBOXES}_made_and_run_s", made - begun)
    tell(f"sandboxes_{SANDBOXES}_ended_s", ended - made)


commands()
asyncio.run(many())
