"""What is malformed is refused with a status of 4xx and a code, soon, and breaks nothing."""

import io
import time
import zipfile

import pytest
import requests
from conftest import HEADERS, KEY, NODE

POSTED = ("create_session", "run_in_session", "close_session", "execute", "read_file", "write_file", "upload", "close")
WRONG = {
    "create_session": [
        {"session": 1},
        {"session": None},
        {"session_type": "zsh"},
        {"startup_source": "x"},
        {"startup_source": [1]},
        {"startup_timeout": "soon"},
        {"session": "x" * 1000},
        {"session": "a\0b"},
        {"surprise": 1},
    ],
    "run_in_session": [
        {},
        {"command": "true"},
        {"action_type": "bash"},
        {"command": 1, "action_type": "bash"},
        {"command": "true", "action_type": "zsh"},
        {"command": "true", "action_type": "bash", "check": "loud"},
        {"command": "true", "action_type": "bash", "timeout": "1s"},
        {"command": "true", "action_type": "bash", "surprise": 1},
        {"command": "true", "action_type": "bash", "expect": "x"},
        {"command": "true", "action_type": "bash", "expect": ["("]},
        {"command": "true", "action_type": "bash", "expect": ["x" * 2000]},
        {"command": "true", "action_type": "bash", "expect": ["x"] * 1000},
        {"command": "x" * (2 << 20), "action_type": "bash"},
        {"command": "x", "action_type": "bash", "is_interactive_command": True, "is_interactive_quit": True},
        {"action_type": "bash_interrupt", "n_retry": -1},
        {"action_type": "bash_interrupt", "n_retry": 10**6},
        {"action_type": "bash_interrupt", "timeout": None},
    ],
    "close_session": [{"session": 1}, {"surprise": 1}, {"session": "x" * 1000}],
    "execute": [
        {},
        {"command": 1},
        {"command": []},
        {"command": [1]},
        {"command": ""},
        {"command": "x", "env": {"A": 1}},
        {"command": "x", "timeout": "1"},
        {"command": "x", "surprise": 1},
        {"command": ["x" * 200_000]},
        {"command": "x", "cwd": ""},
        {"command": "x" * (3 << 20), "shell": True},
    ],
    "read_file": [{}, {"path": 1}, {"path": ""}, {"path": "a\0b"}, {"path": "x", "surprise": 1}, {"path": "x" * 5000}],
    "write_file": [{"path": "x"}, {"content": "x"}, {"path": "", "content": ""}, {"path": "x", "content": 1}],
}


def post(url, verb, within=20, **options):
    start = time.monotonic()
    answer = requests.post(f"{url}/{verb}", headers=HEADERS, timeout=60, **options)
    assert time.monotonic() - start < within
    return answer


def refused(answer):
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    body = answer.json()
    assert body["code"] and body["detail"] and len(answer.text) < 2000
    return answer.status_code, body["code"]


def test_bodies(url):
    for verb, bodies in WRONG.items():
        for body in bodies:
            status, code = refused(post(url, verb, json=body))
            assert code == "invalid_argument" and status in (400, 413, 422), (verb, str(body)[:100])
        for raw in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 1000, b"1e999"):
            assert refused(post(url, verb, data=raw)) == (422, "invalid_argument"), (verb, raw[:20])
        assert refused(post(url, verb, data=b"[" + b" " * (9 << 20) + b"]")) == (413, "invalid_argument")
    assert requests.get(f"{url}/is_alive", headers=HEADERS, timeout=10).json() == {"is_alive": True, "message": ""}


def test_keys_and_ids(url):
    for verb in ("", "is_alive", *POSTED, "nothing"):
        for method in ("GET", "POST"):
            at = f"{url}/{verb}"
            assert refused(requests.request(method, at, timeout=10)) == (403, "unauthenticated")
            wrong = requests.request(method, at, headers={"X-API-Key": KEY[:-1] + "!"}, timeout=10)
            assert refused(wrong) == (401, "unauthenticated")
            other = f"{NODE}/swerex/sb-e1-00000000000000000000000000/{verb}"
            assert refused(requests.request(method, other, headers=HEADERS, timeout=10)) == (404, "not_found")
    for id in ("", "x", "%2e%2e", "%00", "sb-e1-01", "sb-e9-00000000000000000000000000", "a" * 5000):
        assert refused(requests.get(f"{NODE}/swerex/{id}/is_alive", headers=HEADERS, timeout=10))[0] == 404
    assert refused(requests.get(f"{NODE}/swerex/", headers=HEADERS, timeout=10))[0] == 404


def test_methods_and_paths(url):
    for verb in POSTED:
        assert refused(requests.get(f"{url}/{verb}", headers=HEADERS, timeout=10)) == (405, "unsupported")
    assert refused(post(url, "is_alive")) == (405, "unsupported")
    for verb in ("nothing", "execute/", "../execute/x", "is_alive//"):
        assert refused(post(url, verb)) == (404, "not_found")
    for at in (url, f"{url}/"):
        assert requests.get(at, headers=HEADERS, timeout=10).json() == {"message": "hello world"}


def test_uploads(url):
    file = {"file": ("x", b"data")}
    place = {"target_path": "/tmp/x"}
    for files, data in [
        (file, {}),
        (None, place),
        ({**file, "more": ("y", b"")}, place),
        (file, {**place, "unzip": "maybe"}),
        (file, {**place, "surprise": "1"}),
        (file, {"target_path": ""}),
        (file, {"target_path": "x" * 5000}),
        (file, {"target_path": "x" * 50_000}),
    ]:
        refused(post(url, "upload", files=files or {"z": (None, "1")}, data=data))
    for headers in ({}, {"Content-Type": "multipart/form-data"}, {"Content-Type": "multipart/form-data; boundary=x"}):
        for body in (b"", b"--x\r\n", b"--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nhalf", b"nothing"):
            sent = requests.post(f"{url}/upload", headers={**HEADERS, **headers}, data=body, timeout=60)
            refused(sent)


def test_zips(url):
    def upload(data):
        form = {"target_path": "/tmp/unzipped/here", "unzip": "true"}
        return post(url, "upload", files={"file": ("x.zip", data)}, data=form)

    for data in (b"", b"nothing", b"PK\x03\x04" + bytes(100), zipped({"a": b"x" * 1000})[:-30]):
        answer = upload(data)
        assert answer.status_code == 511
        assert answer.json()["swerexception"]["class_path"] == "zipfile.BadZipFile"
    hostile = {"../../../../tmp/up": b"1", "/tmp/root": b"2", "a/../../b": b"3", "./c//d": b"4", "..": b"", "e/": b""}
    assert upload(zipped(hostile)).json() == {}
    found = post(url, "execute", json={"command": "cd /tmp; find . -type f | sort; ls -d e unzipped/here/e", "shell": True})
    assert found.json()["stdout"].split() == [
        "./unzipped/here/a/b",
        "./unzipped/here/c/d",
        "./unzipped/here/tmp/root",
        "./unzipped/here/tmp/up",
        "unzipped/here/e",
    ]
    # A link in the sandbox leads where it leads inside it, and a zip has no links.
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    assert upload(zipped({link: b"/etc/passwd"})).json() == {}
    read = post(url, "read_file", json={"path": "/tmp/unzipped/here/link"})
    assert read.json() == {"content": "/etc/passwd"}


def zipped(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize("verb", ["execute", "run_in_session"])
def test_a_client_that_stops_in_the_middle(url, verb):
    import socket
    from urllib.parse import urlsplit

    to = urlsplit(url)
    with socket.create_connection((to.hostname, to.port), timeout=10) as connection:
        head = f"POST {to.path}/{verb} HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Length: 100\r\n\r\n{{"
        connection.sendall(head.encode())
    assert requests.get(f"{url}/is_alive", headers=HEADERS, timeout=10).ok
