"""checkpoint, rollback, fork, pack_diff, by both faces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timezone

import dsec
import pytest
from dsec import AsyncSandbox, Sandbox


@pytest.fixture
def images() -> Iterator[dsec.Images]:
    """What a test packs goes again; it packs under names that start with "packed"."""
    images = dsec.Images()
    yield images
    for image in images.list():
        if image.name.startswith("packed"):
            images.remove(f"{image.name}:{image.version}")


def test_a_rollback_brings_the_disk_back_and_ends_the_processes(sandbox: Sandbox) -> None:
    sandbox.files.write("a", "one")
    checkpoint = sandbox.checkpoint("clean")
    assert checkpoint.name == "clean" and abs((datetime.now(timezone.utc) - checkpoint.created).total_seconds()) < 60
    sandbox.files.write("a", "two")
    sandbox.files.write("b", "new")
    running = sandbox.spawn(["sleep", "600"])
    for what in (checkpoint, "clean"):
        info = sandbox.rollback(what)
        assert (info.id, info.state, info.execs_live) == (sandbox.id, "running", 0)
        assert sandbox.files.read_text("a") == "one" and not sandbox.files.exists("b")
    assert running.wait(timeout=10).reason == "sandbox_gone"


def test_checkpoints_are_named_counted_and_bounded(sandbox: Sandbox) -> None:
    made_up = sandbox.checkpoint().name
    for n in range(7):
        sandbox.checkpoint(f"c{n}")
    with pytest.raises(dsec.QuotaExceeded):
        sandbox.checkpoint("more")
    assert [known.name for known in sandbox.checkpoints()] == [made_up, *(f"c{n}" for n in range(7))]
    sandbox.remove_checkpoint(made_up)
    with pytest.raises(dsec.AlreadyExists):
        sandbox.checkpoint("c0")
    with pytest.raises(dsec.InvalidArgument):
        sandbox.checkpoint("a/b")
    for work in (sandbox.remove_checkpoint, sandbox.rollback):
        with pytest.raises(dsec.NotFound):
            work("none")
    assert sandbox.exec("true").ok


def test_forks_have_the_disk_and_go_their_own_ways(sandbox: Sandbox) -> None:
    sandbox.files.write("a", "then")
    sandbox.checkpoint("then")
    sandbox.files.write("a", "now")
    sandbox.detach("sleep 600")
    forks = list(sandbox.fork(3, labels={"try": "1"}, ttl=77))
    old = next(sandbox.fork(checkpoint=sandbox.checkpoints()[0]))
    try:
        assert len({one.id for one in [*forks, old, sandbox]}) == 5
        for n, one in enumerate(forks):
            assert type(one) is Sandbox and one.created.labels == {"try": "1"} and one.created.execs_live == 0
            life = one.created.expires - one.created.created
            assert 76 < life.total_seconds() < 78
            assert one.files.read_text("a") == "now"
            one.files.write("a", str(n))
        assert [one.files.read_text("a") for one in forks] == ["0", "1", "2"]
        assert old.files.read_text("a") == "then" and sandbox.files.read_text("a") == "now"
    finally:
        for one in [*forks, old]:
            one.stop()


def test_what_a_fork_refuses(sandbox: Sandbox) -> None:
    with pytest.raises(dsec.NotFound):
        next(sandbox.fork(checkpoint="none"))
    with pytest.raises(dsec.InvalidArgument):
        next(sandbox.fork(0))
    with pytest.raises(dsec.InvalidArgument, match="ttl"):
        sandbox.fork(ttl=0)


def test_a_fork_with_a_key_is_made_once(sandbox: Sandbox) -> None:
    first, second = (list(sandbox.fork(2, idempotency_key=f"fork-{sandbox.id}")) for _ in range(2))
    assert {one.id for one in first} == {one.id for one in second}
    for one in first:
        one.stop()


def test_a_packed_disk_starts_new_sandboxes(sandbox: Sandbox, images: dsec.Images) -> None:
    sandbox.exec(
        """mkdir -p /srv/answers ~/.cache; echo 42 > /srv/answers/a; echo kept > /srv/kept; touch ~/.cache/c
        echo history > ~/.bash_history; sleep 0.05; touch /srv/late""",
        user="root",
    ).check()
    report = sandbox.pack_diff("packed", version="7", exclude="/srv/answers", shell_history=True, caches=True)
    assert (report.image.name, report.image.version, report.image.kind) == ("packed", "7", "base")
    assert report.image.layers == [*sandbox.created.layers, report.layer]
    assert report.size > 0 and report.files > 0 and 0 < report.frozen < 2
    assert dsec.Scrubbed("/srv/answers", "exclude") in report.scrubbed
    assert report.scrubbed_count == len(report.scrubbed) >= 3
    with Sandbox.create("packed:7") as again:
        assert again.exec("cat /srv/kept; ls /srv").stdout == "kept\nkept\nlate\n"
    marked = sandbox.pack_diff("packed", exclude=["/root", "/home"], newer_than="/srv/kept")
    assert dsec.Scrubbed("/srv/late", "newer_than") in marked.scrubbed
    assert sandbox.exec("cat /srv/answers/a", user="root").stdout == "42\n"


def test_a_diff_alone_goes_over_another_base(sandbox: Sandbox, images: dsec.Images) -> None:
    sandbox.exec("mkdir /opt/tool; echo tool > /opt/tool/t", user="root").check()
    report = sandbox.pack_diff("packed-tool", kind="toolkit")
    assert report.image.layers == [report.layer]
    with Sandbox.create("debian", toolkits="packed-tool") as other:
        assert other.files.read_text("/opt/tool/t") == "tool\n"
        with pytest.raises(dsec.Conflict):
            images.remove("packed-tool")


def test_what_a_pack_refuses(sandbox: Sandbox) -> None:
    with pytest.raises(dsec.InvalidArgument, match="name"):
        sandbox.pack_diff("a/b")
    with pytest.raises(dsec.InvalidArgument, match="exclude"):
        sandbox.pack_diff("x", exclude="relative")
    with pytest.raises(dsec.InvalidArgument, match="none"):
        sandbox.pack_diff("x", newer_than="/none")
    with pytest.raises(dsec.InvalidArgument, match="kind|variant"):
        sandbox.pack_diff("x", kind="other")  # type: ignore[arg-type]


def test_memory_has_no_disk(node: object) -> None:
    with Sandbox.create("debian", scratch="memory") as sandbox:
        with pytest.raises(dsec.Unsupported):
            sandbox.checkpoint()
        with pytest.raises(dsec.Unsupported):
            next(sandbox.fork())
        with pytest.raises(dsec.Unsupported):
            sandbox.pack_diff("x")


async def test_the_async_face(asandbox: AsyncSandbox, images: dsec.Images) -> None:
    sb = asandbox
    await sb.files.write("a", "one")
    checkpoint = await sb.checkpoint()
    await sb.files.write("a", "two")
    forks = [fork async for fork in sb.fork(4, checkpoint=checkpoint)]
    assert all(type(fork) is AsyncSandbox for fork in forks)
    assert await asyncio.gather(*(fork.files.read_text("a") for fork in forks)) == ["one"] * 4
    await asyncio.gather(*(fork.stop() for fork in forks))
    report = await sb.pack_diff("packed-async")
    async with await AsyncSandbox.create("packed-async") as again:
        assert await again.files.read_text("a") == "two" and again.created.layers[-1] == report.layer
    assert (await sb.rollback(checkpoint)).execs_live == 0
    assert await sb.files.read_text("a") == "one"
    await sb.remove_checkpoint(checkpoint.name)
    assert await sb.checkpoints() == []
    with pytest.raises(dsec.NotFound):
        await sb.rollback(checkpoint)


async def test_forks_that_are_not_taken_are_stopped(asandbox: AsyncSandbox) -> None:
    forks = asandbox.fork(4, labels={"taken": "no"})
    first = await anext(forks)
    await forks.aclose()
    for _ in range(200):
        left = [info.id for info in await AsyncSandbox.list(label="taken=no") if info.state != "stopping"]
        if left == [first.id]:
            break
        await asyncio.sleep(0.05)
    assert left == [first.id]
    await first.stop()
