"""The protocol itself, below the package: envelopes, signs of life, what is malformed."""

import base64
import json
import socket
import struct
import time
from urllib.parse import urlsplit

import httpx
import pytest

STREAM = "application/connect+json"


def envelope(message, flags=0):
    body = json.dumps(message).encode() if not isinstance(message, bytes) else message
    return struct.pack(">BI", flags, len(body)) + body


def envelopes(data):
    seen = []
    while data:
        flags, length = struct.unpack(">BI", data[:5])
        seen.append((flags, json.loads(data[5 : 5 + length])))
        data = data[5 + length :]
    return seen


@pytest.fixture
def call(sandbox, api):
    """Posts to the in-sandbox API."""
    url, key = api

    def call(verb, content, client=httpx, **headers):
        defaults = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-API-Key": key, "Content-Type": STREAM}
        return client.post(f"{url}/{verb}", content=content, headers={**defaults, **headers}, timeout=30)

    return call


def start(script, **more):
    return envelope({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": False, **more})


def events(answer):
    return [message.get("event", message) for _, message in envelopes(answer.content)]


def test_a_stream_over_http1_and_http2(call):
    for http2 in [False, True]:
        with httpx.Client(http1=not http2, http2=http2) as client:
            answer = call("process.Process/Start", start("echo hi; exit 3"), client)
            assert answer.status_code == 200 and answer.headers["content-type"] == STREAM
            begun, data, ended, last = events(answer)
            assert begun["start"]["pid"] > 0
            assert base64.b64decode(data["data"]["stdout"]) == b"hi\n"
            assert ended["end"] == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
            assert last == {}


def test_signs_of_life(call):
    answer = call("process.Process/Start", start("sleep 2.5"), **{"Keepalive-Ping-Interval": "1"})
    assert [e for e in events(answer) if "keepalive" in e] == [{"keepalive": {}}] * 2


def test_a_timeout_is_told_in_the_stream(call):
    answer = call("process.Process/Start", start("sleep 100"), **{"Connect-Timeout-Ms": "300"})
    assert events(answer)[-1]["error"]["code"] == "deadline_exceeded"


def test_what_is_malformed_is_refused_and_nothing_breaks(call, sandbox):
    begin = "process.Process/Start"
    for content in [b"", b"\0", b"\0\0\0\0\x05{}", envelope(b"not json"), envelope(b"[]"), envelope({"process": 5}), struct.pack(">BI", 0, 0xFFFFFFFF)]:
        answer = call(begin, content)
        assert events(answer)[-1]["error"]["code"] == "invalid_argument", content
    packed = call(begin, envelope({}, flags=1))
    assert events(packed)[-1]["error"]["code"] == "unimplemented"
    tagged = call(begin, start("true", tag="t"))
    assert events(tagged)[-1]["error"]["code"] == "unimplemented"
    extra = call(begin, start("true", cgroup="x"))
    assert "cgroup" in events(extra)[-1]["error"]["message"]
    assert call("process.Process/List", b"{}", **{"Content-Type": "application/proto"}).status_code == 415
    assert call("process.Process/Nothing", b"{}").status_code == 501
    assert call("nothing.at.All/X", b"{}").status_code == 501
    assert call("process.Process/SendSignal", b'{"process":{"pid":1},"signal":"SIGNAL_SIGHUP"}', **{"Content-Type": "application/json"}).status_code == 400
    deep = b'{"process":' * 10_000
    assert call("process.Process/List", deep, **{"Content-Type": "application/json"}).status_code == 400
    assert sandbox.commands.run("echo fine").stdout == "fine\n"


def test_a_body_that_is_too_large(call):
    big = b'{"path":"' + b"x" * (9 << 20) + b'"}'
    answer = call("filesystem.Filesystem/Stat", big, **{"Content-Type": "application/json"})
    assert answer.status_code == 413 and answer.json()["code"] == "resource_exhausted"


def test_an_upgrade_goes_through_to_a_port(sandbox, api):
    code = (
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 8003))\n"
        "c, _ = s.accept()\n"
        "assert b'Upgrade: echo' in c.recv(65536).replace(b'upgrade: ', b'Upgrade: ')\n"
        "c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nConnection: upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')\n"
        "while True:\n"
        "    data = c.recv(65536)\n"
        "    if not data: break\n"
        "    c.sendall(data.upper())\n"
    )
    sandbox.files.write("/tmp/upgrade.py", code)
    sandbox.commands.run("exec python3 /tmp/upgrade.py", background=True, timeout=0)
    for _ in range(100):
        if ":1F43 " in sandbox.commands.run("cat /proc/net/tcp").stdout:
            break
        time.sleep(0.1)
    url, key = api
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        lines = [
            "GET /ws HTTP/1.1",
            f"Host: 8003-{sandbox.sandbox_id}.sandboxes.example",
            f"X-API-Key: {key}",
            "Connection: Upgrade",
            "Upgrade: echo",
        ]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        assert head.startswith(b"HTTP/1.1 101"), head
        connection.sendall(b"hello")
        assert connection.recv(4096) == b"HELLO"
