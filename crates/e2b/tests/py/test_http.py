"""What the package leaves to others: ports, host names, signed URLs, HTTP/2."""

import time
from urllib.parse import urlsplit

import httpx
import pytest


def serve(sandbox, port=8000):
    sandbox.files.write("/tmp/www/hello.txt", "from inside")
    sandbox.commands.run(f"cd /tmp/www && exec python3 -m http.server {port}", background=True, timeout=0)
    for _ in range(100):
        if sandbox.commands.run(f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))' 2>/dev/null; echo $?").stdout == "0\n":
            return
        time.sleep(0.1)
    raise AssertionError("no server")


def token(sandbox):
    found = getattr(sandbox, "traffic_access_token", None)
    if not found:
        pytest.skip("this version does not tell the traffic token")
    return {"e2b-traffic-access-token": found}


def test_a_port_by_header_and_by_host_name(sandbox, api):
    url, _ = api
    serve(sandbox)
    by_header = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000", **token(sandbox)}
    assert httpx.get(f"{url}/hello.txt", headers=by_header).text == "from inside"
    by_host = {"Host": f"8000-{sandbox.sandbox_id}.sandboxes.example", **token(sandbox)}
    assert httpx.get(f"{url}/hello.txt?a=b", headers=by_host).text == "from inside"
    assert httpx.get(f"{url}/none", headers=by_host).status_code == 404
    bare = {"Host": f"8000-{sandbox.sandbox_id}.sandboxes.example"}
    assert httpx.get(f"{url}/hello.txt", headers=bare).status_code == 401


def test_a_port_where_nothing_listens(sandbox, api):
    url, _ = api
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8001", **token(sandbox)}
    answer = httpx.get(url, headers=headers)
    assert answer.status_code == 502 and "port is not open" in answer.json()["message"]


def test_the_tokens_stay_outside(sandbox, api):
    url, key = api
    code = "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200); s.end_headers(); s.wfile.write(str(s.headers).encode())\nh.HTTPServer(('127.0.0.1', 8002), H).serve_forever()"
    sandbox.files.write("/tmp/echo.py", code)
    sandbox.commands.run("exec python3 /tmp/echo.py", background=True, timeout=0)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8002", "X-API-Key": key, "Authorization": "Bearer mine", "X-Mine": "yes"}
    for _ in range(100):
        answer = httpx.get(url, headers=headers)
        if answer.status_code == 200:
            break
        time.sleep(0.1)
    seen = answer.text.lower()
    assert "x-mine: yes" in seen and "bearer mine" in seen
    assert key.lower() not in seen and "e2b-" not in seen


def on_host(sandbox, signed):
    """A signed URL, as it is where a domain leads to the node."""
    parts = urlsplit(signed)
    return f"{parts.path}?{parts.query}", {"Host": f"49983-{sandbox.sandbox_id}.sandboxes.example"}


def test_signed_urls(sandbox, api):
    url, _ = api
    sandbox.files.write("signed.txt", "signed")
    path, host = on_host(sandbox, sandbox.download_url("signed.txt"))
    assert httpx.get(url + path, headers=host).text == "signed"
    assert httpx.get(url + path.replace("signed.txt", "other.txt"), headers=host).status_code == 401
    assert httpx.post(url + path, headers=host, files={"file": "x"}).status_code == 401
    path, host = on_host(sandbox, sandbox.upload_url("up.txt", user="user", use_signature_expiration=60))
    assert httpx.post(url + path, headers=host, files={"file": "uploaded"}).status_code == 200
    assert sandbox.files.read("up.txt") == "uploaded"
    path, host = on_host(sandbox, sandbox.download_url("signed.txt", use_signature_expiration=-5))
    assert httpx.get(url + path, headers=host).status_code == 401


def test_a_part_of_a_file(sandbox, api):
    url, _ = api
    sandbox.files.write("digits", "0123456789")
    path, host = on_host(sandbox, sandbox.download_url("digits"))
    answer = httpx.get(url + path, headers={**host, "Range": "bytes=2-4"})
    assert (answer.status_code, answer.text, answer.headers["content-range"]) == (206, "234", "bytes 2-4/10")
    assert httpx.get(url + path, headers={**host, "Range": "bytes=10-"}).status_code == 416


def test_nobody_without_a_token_gets_in(sandbox, api):
    url, _ = api
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    assert httpx.get(f"{url}/files?path=/etc/passwd", headers=headers).status_code == 401
    wrong = {**headers, "X-Access-Token": "0" * 64}
    assert httpx.get(f"{url}/files?path=/etc/passwd", headers=wrong).status_code == 401
    answer = httpx.post(f"{url}/process.Process/List", json={}, headers=wrong)
    assert answer.status_code == 401 and answer.json()["code"] == "unauthenticated"


def test_http2(sandbox, api):
    url, key = api
    with httpx.Client(http1=False, http2=True, timeout=30) as client:
        listed = client.get(f"{url}/v2/sandboxes", headers={"X-API-Key": key})
        assert listed.http_version == "HTTP/2"
        assert sandbox.sandbox_id in [entry["sandboxID"] for entry in listed.json()]
        inside = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-API-Key": key}
        big = b"x" * 3_000_000
        upload = {**inside, "Content-Type": "application/octet-stream"}
        assert client.post(f"{url}/files?path=/tmp/h2", headers=upload, content=big).status_code == 200
        assert client.get(f"{url}/files?path=/tmp/h2", headers=inside).content == big
        assert client.get(f"{url}/v1/health").json()["status"] == "ok"


def test_a_whole_upload_or_none(sandbox, api):
    url, key = api
    inside = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-API-Key": key, "Content-Type": "application/octet-stream"}
    broken = {**inside, "Content-Encoding": "gzip"}
    assert httpx.post(f"{url}/files?path=/tmp/half", headers=broken, content=b"no gzip").status_code == 400
    assert not sandbox.files.exists("/tmp/half")
    metadata = {**inside, "X-Metadata-Author": "me"}
    assert httpx.post(f"{url}/files?path=/tmp/half", headers=metadata, content=b"x").status_code == 501
