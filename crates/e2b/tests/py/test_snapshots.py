"""Snapshots: of the disk alone, good for other sandboxes, also after their source has ended."""

import inspect
import uuid

import httpx
import pytest
from e2b import AsyncSandbox, InvalidArgumentException, NotFoundException, Sandbox, SandboxException

# Of the versions that can ask for more or less than the server's choice.
with_modes = pytest.mark.skipif(
    "mode" not in inspect.signature(Sandbox.create_snapshot).parameters, reason="this version has no modes"
)


@pytest.fixture
def snapshot(sandbox):
    """Makes snapshots of the sandbox, which go with the test."""
    made = []

    def snapshot(*args, **options):
        info = sandbox.create_snapshot(*args, **options)
        made.append(info.snapshot_id)
        return info

    yield snapshot
    for one in made:
        Sandbox.delete_snapshot(one)


def listed(**options):
    pages, found = Sandbox.list_snapshots(**options), []
    while pages.has_next:
        found += pages.next_items()
    return found


def test_a_snapshot_starts_others_from_the_disk_as_it_was(sandbox, snapshot):
    sandbox.files.write("state", "then")
    sandbox.commands.run("rm -f ~/.bashrc")
    # A handle that is forgotten is closed by the garbage collector, wherever that runs: some versions then lock up.
    sandbox.commands.run("sleep 3501", background=True, timeout=0).disconnect()
    info = snapshot()
    sandbox.files.write("state", "now")
    assert sandbox.commands.list(), "the source runs on"
    for _ in range(2):
        with Sandbox.create(info.snapshot_id, timeout=100) as box:
            assert box.get_info().template_id == info.snapshot_id
            assert box.files.read("state") == "then" and not box.files.exists(".bashrc")
            assert box.commands.run("pwd; id -un").stdout == "/home/user\nuser\n"
            assert box.commands.list() == [], "no process comes along"
            box.files.write("state", "mine")
    assert sandbox.files.read("state") == "now"


def test_a_snapshot_outlives_its_source_and_goes_when_told():
    source = Sandbox.create(timeout=100)
    source.files.write("a", "kept")
    info = source.create_snapshot()
    source.kill()
    with Sandbox.create(info.snapshot_id, timeout=100) as box:
        assert box.files.read("a") == "kept"
        # It is lived on.
        with pytest.raises(SandboxException):
            Sandbox.delete_snapshot(info.snapshot_id)
    assert Sandbox.delete_snapshot(info.snapshot_id)
    assert not Sandbox.delete_snapshot(info.snapshot_id)
    with pytest.raises(SandboxException, match="not found"):
        Sandbox.create(info.snapshot_id, timeout=100)


def test_a_name_leads_to_the_newest_of_its_builds(sandbox, snapshot):
    name = f"golden-{uuid.uuid4().hex[:8]}"
    sandbox.files.write("a", "first")
    first = snapshot(name)
    assert first.names == [name]
    with Sandbox.create(name, timeout=100) as second:
        second.files.write("a", "second")
        newer = second.create_snapshot(name)
    try:
        assert newer.snapshot_id != first.snapshot_id
        with Sandbox.create(name, timeout=100) as box:
            assert box.files.read("a") == "second"
        with Sandbox.create(first.snapshot_id, timeout=100) as box:
            assert box.files.read("a") == "first"
        sandbox.files.write("a", "again")
        assert snapshot(name).snapshot_id == first.snapshot_id
        with Sandbox.create(name, timeout=100) as box:
            assert box.files.read("a") == "again"
    finally:
        assert Sandbox.delete_snapshot(newer.snapshot_id)


def test_list_filters_and_pages(sandbox, snapshot):
    made = [snapshot().snapshot_id for _ in range(3)]
    pages = sandbox.list_snapshots(limit=2)
    sizes, seen = [], []
    while pages.has_next:
        page = pages.next_items()
        sizes.append(len(page))
        seen += [info.snapshot_id for info in page]
    # Newest first, each once.
    assert sizes == [2, 1] and seen == made[::-1]
    assert set(made) <= {info.snapshot_id for info in listed()}
    assert listed(sandbox_id="sb-e1-00000000000000000000000000") == []
    if "name" in inspect.signature(Sandbox.list_snapshots).parameters:
        named = snapshot(f"n-{uuid.uuid4().hex[:8]}")
        assert [info.snapshot_id for info in listed(name=named.names[0])] == [named.snapshot_id]


def test_snapshots_are_no_default_template(sandbox, snapshot):
    snapshot()
    with Sandbox.create(timeout=60) as box:
        assert box.get_info().template_id == "debian"


@with_modes
def test_modes(sandbox, snapshot):
    sandbox.files.write("a", "b")
    with Sandbox.create(snapshot(mode="filesystem").snapshot_id, timeout=60) as box:
        assert box.files.read("a") == "b"
    with pytest.raises(SandboxException, match="memory.*not supported"):
        sandbox.create_snapshot(mode="full")


def test_what_is_refused(sandbox, api):
    url, key = api
    with pytest.raises((InvalidArgumentException, SandboxException), match="name"):
        sandbox.create_snapshot("a/b")
    with pytest.raises(NotFoundException):
        Sandbox.create_snapshot("sb-e1-00000000000000000000000000")
    assert not Sandbox.delete_snapshot("no-such-snapshot")
    # What was imported is not for this API to remove.
    answer = httpx.delete(f"{url}/templates/debian", headers={"X-API-Key": key})
    assert answer.status_code == 501 and "templates" in answer.json()["message"]


@pytest.mark.skipif(not hasattr(Sandbox, "fork"), reason="this version has no fork")
def test_forks_keep_processes_and_ours_would_not(sandbox):
    with pytest.raises(SandboxException, match="not supported"):
        sandbox.fork()


def test_the_asynchronous_face(run):
    async def work(box):
        await box.files.write("a", "b")
        info = await box.create_snapshot()
        try:
            other = await AsyncSandbox.create(info.snapshot_id, timeout=60)
            try:
                assert await other.files.read("a") == "b"
            finally:
                await other.kill()
            page = await box.list_snapshots().next_items()
            assert [one.snapshot_id for one in page] == [info.snapshot_id]
        finally:
            assert await AsyncSandbox.delete_snapshot(info.snapshot_id)

    run(work)
