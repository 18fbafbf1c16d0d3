"""Sandboxes: made, found, kept, ended."""

import time
import uuid
from datetime import datetime, timezone

import httpx
import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def test_create_and_info():
    mark = {"owner": "naïve & co", "run": uuid.uuid4().hex}
    box = Sandbox.create(timeout=200, metadata=mark, envs={"GREETING": "hello there"})
    try:
        info = box.get_info()
        assert info.sandbox_id == box.sandbox_id and info.metadata == mark
        assert info.state == SandboxState.RUNNING and info.cpu_count >= 1 and info.memory_mb > 0
        life = (info.end_at - info.started_at).total_seconds()
        assert 198 <= life <= 202
        assert abs((datetime.now(timezone.utc) - info.started_at).total_seconds()) < 60
        assert box.commands.run("echo $GREETING").stdout == "hello there\n"
        assert box.is_running()
    finally:
        assert box.kill()
    assert not box.is_running() and not box.kill()


def test_templates_are_images():
    with Sandbox.create("debian", timeout=60) as box:
        assert box.get_info().template_id == "debian"
    with pytest.raises(SandboxException, match="no-such-image"):
        Sandbox.create("no-such-image", timeout=60)


def test_connect(sandbox):
    sandbox.files.write("a", "b")
    same = Sandbox.connect(sandbox.sandbox_id)
    assert same.sandbox_id == sandbox.sandbox_id and same.files.read("a") == "b"
    assert same.commands.run("echo ok").stdout == "ok\n"
    with pytest.raises(NotFoundException):
        Sandbox.connect("sb-e1-00000000000000000000000000")


def test_connecting_gives_time_and_never_takes_it():
    box = Sandbox.create(timeout=100)
    try:
        before = box.get_info().end_at
        Sandbox.connect(box.sandbox_id, timeout=10)
        assert box.get_info().end_at == before
        Sandbox.connect(box.sandbox_id, timeout=1000)
        assert (box.get_info().end_at - before).total_seconds() > 800
    finally:
        box.kill()


def test_set_timeout(sandbox):
    sandbox.set_timeout(1000)
    left = (sandbox.get_info().end_at - datetime.now(timezone.utc)).total_seconds()
    assert 900 < left < 1010
    sandbox.set_timeout(2)
    for _ in range(100):
        if not sandbox.is_running():
            break
        time.sleep(0.1)
    assert not sandbox.is_running()
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(NotFoundException):
        sandbox.set_timeout(10)


def test_a_sandbox_that_is_gone_says_so(sandbox):
    sandbox.kill()
    for work in [
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.files.read("a"),
        lambda: sandbox.files.list("/"),
        lambda: sandbox.files.write("a", "b"),
        lambda: sandbox.commands.list(),
    ]:
        with pytest.raises(TimeoutException):
            work()


def test_a_command_whose_sandbox_ends_under_it(sandbox):
    handle = sandbox.commands.run("sleep 100", background=True)
    sandbox.kill()
    with pytest.raises((TimeoutException, SandboxException)):
        handle.wait()


def test_list_filters_and_pages():
    run = uuid.uuid4().hex
    boxes = [Sandbox.create(timeout=100, metadata={"run": run, "n n": f"{n} &"}) for n in range(5)]
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata={"run": run}), limit=2)
        sizes, seen = [], []
        while pages.has_next:
            page = pages.next_items()
            sizes.append(len(page))
            seen += [info.sandbox_id for info in page]
        assert sizes == [2, 2, 1]
        # Newest first, each once.
        assert seen == [box.sandbox_id for box in reversed(boxes)]
        one = Sandbox.list(query=SandboxQuery(metadata={"run": run, "n n": "3 &"})).next_items()
        assert [info.sandbox_id for info in one] == [boxes[3].sandbox_id]
        paused = SandboxQuery(metadata={"run": run}, state=[SandboxState.PAUSED])
        assert Sandbox.list(query=paused).next_items() == []
    finally:
        for box in boxes:
            box.kill()


def test_kill_by_id():
    box = Sandbox.create(timeout=100)
    assert Sandbox.kill(box.sandbox_id)
    assert not Sandbox.kill(box.sandbox_id)


def test_metrics_are_none_rather_than_wrong(sandbox):
    assert sandbox.get_metrics() == []


def test_what_cannot_be_done_is_refused(api):
    url, key = api
    for extra in [{"autoPause": True}, {"network": {"denyOut": ["10.0.0.0/8"]}}, {"volumeMounts": [{"name": "v", "path": "/v"}]}, {"mcp": {"a": {}}}]:
        answer = httpx.post(f"{url}/sandboxes", json={"templateID": "base", **extra}, headers={"X-API-Key": key})
        assert answer.status_code == 501, answer.text
        assert next(iter(extra)) in answer.json()["message"]
    answer = httpx.post(f"{url}/sandboxes", json={"templateID": "base", "gpus": 1}, headers={"X-API-Key": key})
    assert answer.status_code == 400 and "gpus" in answer.json()["message"]


def test_pausing_is_not_there_yet_and_says_so(sandbox):
    pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
    with pytest.raises(SandboxException, match="not supported"):
        pause()
    assert sandbox.is_running()


def test_a_wrong_key_is_refused():
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)
    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "0" * 40).next_items()


def test_network_by_switch():
    with Sandbox.create(timeout=60, allow_internet_access=False) as box:
        assert box.commands.run("ls /sys/class/net").stdout.split() == ["lo"]


def test_an_idempotent_create_makes_one(api):
    url, key = api
    headers = {"X-API-Key": key, "Idempotency-Key": uuid.uuid4().hex}
    body = {"templateID": "base", "timeout": 60}
    first, second = (httpx.post(f"{url}/v2/sandboxes", json=body, headers=headers).json() for _ in range(2))
    assert first["sandboxID"] == second["sandboxID"]
    assert Sandbox.kill(first["sandboxID"])


def test_refreshes_and_old_paths(api, sandbox):
    url, key = api
    headers = {"X-API-Key": key}
    before = sandbox.get_info().end_at
    path = f"{url}/sandboxes/{sandbox.sandbox_id}/refreshes"
    assert httpx.post(path, json={"duration": 3000}, headers=headers).status_code == 204
    assert (sandbox.get_info().end_at - before).total_seconds() > 2000
    listed = httpx.get(f"{url}/sandboxes", headers=headers).json()
    assert sandbox.sandbox_id in [entry["sandboxID"] for entry in listed]
