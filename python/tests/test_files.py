"""Section E of the black-box cases: files, trees, and raw ports."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
from pathlib import Path

import dsec
import pytest
from dsec import Sandbox

KIB, MIB = 1 << 10, 1 << 20


def test_case_49_success_means_written(sandbox: Sandbox) -> None:
    for size in [0, 1, 17 * KIB, 18 * KIB, 19 * KIB, MIB, 16 * MIB, 17 * MIB, 31 * MIB, 33 * MIB, 101 * MIB]:
        data = os.urandom(min(size, MIB)) * (size // MIB if size > MIB else 1)
        assert sandbox.files.write("/tmp/f", data).size == size
        said = sandbox.exec(["sha256sum", "/tmp/f"]).check().stdout.split()[0]
        assert said == hashlib.sha256(data).hexdigest(), size
        assert sandbox.files.read("/tmp/f") == data


def test_case_50_binary_reads_are_exact(sandbox: Sandbox) -> None:
    zipped = io.BytesIO()
    with tarfile.open(fileobj=zipped, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    for data in [b"\x89PNG" + bytes(range(256)), zipped.getvalue(), bytes(range(256)) * 2]:
        sandbox.files.write("b", data)
        assert sandbox.files.read("b") == data
    assert sandbox.files.read("b", offset=250, length=10) == bytes([*range(250, 256), *range(4)])
    assert sandbox.files.read("b", offset=500) == bytes(range(244, 256))


def test_case_52_ownership_follows_the_user(sandbox: Sandbox) -> None:
    sandbox.files.write("w/deep/a.txt", "1\n")
    sandbox.exec("echo 2 >> w/deep/a.txt && mkdir w/beside && rm w/deep/a.txt").check()
    assert sandbox.files.stat("w").uid == 1000
    root = sandbox.files.as_user("root")
    root.write("/srv/r/a", "x", mode=0o600)
    info = root.stat("/srv/r/a")
    assert (info.uid, info.gid, info.mode) == (0, 0, 0o600)
    with pytest.raises(dsec.PermissionDenied):
        sandbox.files.read("/srv/r/a")


def test_case_53_a_download_cannot_escape(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.exec("mkdir d && ln -s /etc d/etc && ln -s ../../../../x d/up && echo y > d/f").check()
    report = sandbox.files.download_dir("d", tmp_path / "here")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here"]
    assert (tmp_path / "here/etc").is_symlink() and report.entries >= 3
    # A tree that writes through a link of the target is confined to the sandbox.
    (tmp_path / "up/etc").mkdir(parents=True)
    (tmp_path / "up/etc/passwd2").write_text("x")
    try:
        sandbox.files.upload_dir(tmp_path / "up", "d")
    except dsec.Error:
        pass
    assert not Path("/etc/passwd2").exists()


def test_case_55_symlinks_stay_and_lead_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "rel").symlink_to("a")
    (tmp_path / "dangling").symlink_to("nowhere")
    sandbox.files.upload_dir(tmp_path, "tree")
    assert sandbox.files.stat("tree/rel", follow=False).symlink_target == "a"
    assert sandbox.files.stat("tree/rel").is_file
    assert sandbox.files.exists("tree/dangling")
    with pytest.raises(dsec.NotFound):
        sandbox.files.stat("tree/dangling")
    sandbox.exec("ln -s /etc/hostname h").check()
    assert sandbox.files.read_text("h") == sandbox.exec("cat /etc/hostname").stdout


def test_case_56_names(sandbox: Sandbox) -> None:
    names = ["文件 报告.txt", "🦀", " a  b ", "q'\"q", "new\nline", "-dash", "x" * 255, "é", "e\u0301"]
    for name in names:
        sandbox.files.write(f"/tmp/n/{name}", name)
        assert sandbox.files.read_text(f"/tmp/n/{name}") == name
    assert sorted(f.name for f in sandbox.files.list("/tmp/n")) == sorted(names)
    listed = sandbox.exec(["python3", "-c", "import os; print('\\0'.join(os.listdir('/tmp/n')), end='')"])
    assert sorted(listed.stdout.split("\0")) == sorted(names)
    sandbox.exec(["python3", "-c", "open(b'/tmp/n/\\xff', 'w')"]).check()
    assert os.fsdecode(b"\xff") in [f.name for f in sandbox.files.list("/tmp/n")]


def test_case_57_typed_errors(sandbox: Sandbox) -> None:
    files = sandbox.files
    for path, action, kind in [
        ("/nosuch", files.read, dsec.NotFound),
        ("/etc", files.read, dsec.IsDirectory),
        ("/etc/shadow", files.read, dsec.PermissionDenied),
        ("/etc", lambda path: files.write(path, "x"), dsec.IsDirectory),
        ("/etc/x", lambda path: files.write(path, "x"), dsec.PermissionDenied),
        ("/nosuch", files.list, dsec.NotFound),
        ("/nosuch", files.remove, dsec.NotFound),
        ("", files.read, dsec.InvalidArgument),
    ]:
        with pytest.raises(kind) as e:
            action(path)
        assert path in e.value.message


def test_case_59_disk_full(node: object, sandbox: Sandbox) -> None:
    with Sandbox.create("debian", disk="100MiB") as small:
        out = small.exec("head -c 200000000 /dev/zero > big", timeout=120)
        assert out.exit_code != 0 and ("No space" in out.stderr or "quota" in out.stderr.lower())
        with pytest.raises(dsec.DiskFull):
            small.files.write("more", b"x" * (150 * MIB))
        assert small.exec(["echo", "alive"]).stdout == "alive\n"
        small.files.remove("big")
        small.files.write("fits", b"x" * MIB)
        assert sandbox.files.write("neighbour", b"x" * MIB).size == MIB


def test_the_rest_of_files(sandbox: Sandbox, tmp_path: Path) -> None:
    files = sandbox.files
    files.mkdir("d/e")
    files.mkdir("d/e")
    files.write("d/e/a", "one\n")
    files.append("d/e/a", "two\n")
    moved = files.move("d/e/a", "d/b")
    assert moved.name == "b" and files.read_text("d/b") == "one\ntwo\n"
    found = {f.path: f.kind for f in files.list("d", depth=3)}
    assert {Path(p).name: kind for p, kind in found.items()} == {"b": "file", "e": "directory"}
    assert files.stat("d").is_dir and abs(files.stat("d").modified.timestamp() - time.time()) < 600
    (tmp_path / "up").write_bytes(b"z" * (3 * MIB))
    files.upload(tmp_path / "up", "d/up", mode=0o640)
    assert files.stat("d/up").mode == 0o640
    assert files.download("d/up", tmp_path / "down") == 3 * MIB
    assert (tmp_path / "down").read_bytes() == b"z" * (3 * MIB)
    with pytest.raises(dsec.Error):
        files.remove("d")
    files.remove("d", recursive=True)
    assert not files.exists("d")
    with pytest.raises(dsec.InvalidArgument, match="on this machine"):
        files.upload(tmp_path / "nothing", "x")


def test_a_watch_tells_what_happens_after_it(sandbox: Sandbox) -> None:
    sandbox.files.mkdir("w")
    with sandbox.files.watch("w") as watch:
        sandbox.files.write("w/a", "x")
        sandbox.files.remove("w/a")
        seen = []
        for event in watch:
            seen.append(event)
            if event == dsec.WatchEvent("removed", "a"):
                break
        assert {e.name for e in seen if e.kind in ("created", "moved_to")} >= {"a"}
    assert list(watch) == []


SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 9000))
print("ready", flush=True)
peer, _ = server.accept()
data = b""
while part := peer.recv(65536):
    data += part
peer.sendall(data[::-1])
"""


def test_a_port_is_raw_bytes_with_a_half_close(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["python3", "-c", SERVER])
    assert next(process.stdout.lines()) == "ready"
    data = bytes(range(256)) * 1000
    with sandbox.ports[9000].connect() as connection:
        connection.send(data)
        connection.close_write()
        head = connection.recv(3)
        assert head + connection.recv_all() == data[::-1] and len(head) <= 3
        assert connection.recv() == b""
    assert process.wait().exit_code == 0
    with pytest.raises((dsec.NotFound, dsec.Conflict)):
        with sandbox.ports[9000].connect() as connection:
            connection.recv()
