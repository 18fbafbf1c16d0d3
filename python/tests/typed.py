"""Not run: read by mypy, to hold the types that users see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import dsec


class Mine(dsec.Sandbox):
    """Users subclass; `create` gives theirs."""


def sync(sandbox: dsec.Sandbox) -> None:
    assert_type(Mine.create("x", memory="1G", ttl=3), Mine)
    assert_type(next(Mine.create_many(3, "x")), Mine)
    assert_type(sandbox.exec(["a"]).check().stdout, str)
    assert_type(sandbox.spawn("a").stdout.lines(), Iterator[str])
    assert_type(sandbox.files.read("a"), bytes)
    assert_type(dsec.Sandbox.list(), list[dsec.SandboxInfo])
    assert_type(next(Mine.create("x").fork(3)), Mine)
    assert_type(sandbox.rollback(sandbox.checkpoint()), dsec.SandboxInfo)
    assert_type(sandbox.pack_diff("x", exclude="/a").scrubbed, list[dsec.Scrubbed])
    sandbox.pack_diff("x", kind="bas")  # type: ignore[arg-type]
    for event in sandbox.spawn("a"):
        assert_type(event, dsec.Output | dsec.Dropped | dsec.Exit)
    sandbox.exec("a", timout=3)  # type: ignore[call-arg]
    dsec.Sandbox.create("x", memry=1)  # type: ignore[call-arg]


async def asynchronous(sandbox: dsec.AsyncSandbox) -> None:
    assert_type(await dsec.AsyncSandbox.create("x"), dsec.AsyncSandbox)
    assert_type((await sandbox.exec(["a"])).exit_code, int)
    assert_type((await sandbox.spawn("a")).stdout.lines(), AsyncIterator[str])
    async for made in dsec.AsyncSandbox.create_many(2, "x"):
        assert_type(made, dsec.AsyncSandbox)
    async for forked in sandbox.fork(2):
        assert_type(forked, dsec.AsyncSandbox)
    async with sandbox as same:
        assert_type(same, dsec.AsyncSandbox)
