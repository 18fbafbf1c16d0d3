"""Files: bytes in and out, names, directories."""

import io
import inspect

import pytest
from e2b import FileType, InvalidArgumentException, NotFoundException, SandboxException


def test_text(sandbox):
    info = sandbox.files.write("notes.txt", "naïve 東京\n")
    assert (info.name, info.path) == ("notes.txt", "/home/user/notes.txt")
    assert sandbox.files.read("notes.txt") == "naïve 東京\n"
    assert sandbox.files.read("/home/user/notes.txt") == "naïve 東京\n"
    assert sandbox.files.read("~/notes.txt") == "naïve 東京\n"


def test_bytes(sandbox):
    data = bytes(range(256)) * 10
    sandbox.files.write("/tmp/data", data)
    read = sandbox.files.read("/tmp/data", format="bytes")
    assert bytes(read) == data


def test_a_file_object_is_uploaded(sandbox):
    sandbox.files.write("/tmp/object", io.BytesIO(b"x" * 100_000))
    assert len(sandbox.files.read("/tmp/object")) == 100_000


def test_empty(sandbox):
    sandbox.files.write("/tmp/empty", "")
    assert sandbox.files.read("/tmp/empty") == ""
    assert sandbox.files.get_info("/tmp/empty").size == 0


def test_big_and_as_a_stream(sandbox):
    data = b"0123456789abcdef" * (1 << 20)
    sandbox.files.write("/tmp/big", data)
    total = b"".join(sandbox.files.read("/tmp/big", format="stream"))
    assert total == data


def test_overwriting_leaves_nothing_of_the_old(sandbox):
    sandbox.files.write("a", "long long text")
    sandbox.files.write("a", "short")
    assert sandbox.files.read("a") == "short"


def test_parents_are_made(sandbox):
    sandbox.files.write("/tmp/a/b/c/d.txt", "x")
    assert sandbox.files.read("/tmp/a/b/c/d.txt") == "x"
    assert sandbox.commands.run("stat -c %U /tmp/a/b/c").stdout == "user\n"


def test_several_at_once(sandbox):
    files = [{"path": f"/tmp/many/{n}", "data": f"data {n}"} for n in range(20)]
    if hasattr(sandbox.files, "write_files"):
        infos = sandbox.files.write_files(files)
    else:
        infos = sandbox.files.write(files)
    assert [info.path for info in infos] == [f["path"] for f in files]
    assert sandbox.files.read("/tmp/many/19") == "data 19"


def test_odd_names(sandbox):
    for name in ["with space", "東京", "quote'", "a+b&c=d?e#f%20", "-rf", ".hidden", 'double"quote', "back\\slash"]:
        path = f"/tmp/names/{name}"
        info = sandbox.files.write(path, name)
        assert info.path == path
        assert sandbox.files.read(path) == name
        assert sandbox.files.exists(path)
    assert len(sandbox.files.list("/tmp/names")) == 8


def test_compressed_both_ways(sandbox):
    if "gzip" not in inspect.signature(sandbox.files.write).parameters:
        pytest.skip("this version does not compress")
    data = "repeat " * 100_000
    sandbox.files.write("/tmp/zipped", data, gzip=True)
    assert sandbox.commands.run("wc -c < /tmp/zipped").stdout.strip() == str(len(data))
    assert sandbox.files.read("/tmp/zipped", gzip=True) == data


def test_octet_stream(sandbox):
    if "use_octet_stream" not in inspect.signature(sandbox.files.write).parameters:
        pytest.skip("this version has one way to upload")
    for octets in [True, False]:
        sandbox.files.write("/tmp/octets", f"{octets}", use_octet_stream=octets)
        assert sandbox.files.read("/tmp/octets") == f"{octets}"


def test_what_is_not_there(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.files.read("/no/such/file")
    with pytest.raises(NotFoundException):
        sandbox.files.get_info("/no/such/file")
    with pytest.raises(NotFoundException):
        sandbox.files.list("/no/such/directory")
    with pytest.raises(NotFoundException):
        sandbox.files.rename("/no/such/file", "/tmp/x")
    assert not sandbox.files.exists("/no/such/file")


def test_a_directory_is_no_file(sandbox):
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/tmp")
    with pytest.raises(SandboxException):
        sandbox.files.write("/tmp", "x")


def test_users_have_their_own_rights(sandbox):
    sandbox.files.write("/root/secret", "s", user="root")
    assert sandbox.files.read("/root/secret", user="root") == "s"
    with pytest.raises(SandboxException):
        sandbox.files.read("/root/secret")
    with pytest.raises(SandboxException):
        sandbox.files.write("/etc/passwd", "x")
    assert sandbox.files.get_info("/root/secret", user="root").owner == "root"


def test_info(sandbox):
    sandbox.files.write("info.txt", "12345")
    info = sandbox.files.get_info("info.txt")
    assert (info.name, info.path, info.type, info.size) == ("info.txt", "/home/user/info.txt", FileType.FILE, 5)
    assert (info.mode, info.permissions, info.owner, info.group) == (0o644, "-rw-r--r--", "user", "user")
    assert info.modified_time.year > 2000
    folder = sandbox.files.get_info("/home/user")
    assert folder.type == FileType.DIR and folder.permissions.startswith("d")


def test_links(sandbox):
    sandbox.commands.run("mkdir /tmp/l && cd /tmp/l && echo hi > file && ln -s file to-file && ln -s /tmp to-dir && ln -s gone to-gone")
    info = sandbox.files.get_info("/tmp/l/to-file")
    assert info.symlink_target and info.symlink_target.endswith("file")
    # Of the newest versions, a link; of older ones, what it leads to.
    assert info.type.value in ("symlink", "file") and info.size == 3
    entries = {entry.name: entry for entry in sandbox.files.list("/tmp/l")}
    assert entries["to-dir"].type.value in ("symlink", "dir")
    assert sandbox.files.read("/tmp/l/to-file") == "hi\n"


def test_list_and_depth(sandbox):
    sandbox.commands.run("mkdir -p /tmp/t/a/b/c && touch /tmp/t/1 /tmp/t/a/2 /tmp/t/a/b/3")
    names = lambda depth: sorted(entry.path for entry in sandbox.files.list("/tmp/t", depth=depth))
    assert names(1) == ["/tmp/t/1", "/tmp/t/a"]
    assert names(2) == ["/tmp/t/1", "/tmp/t/a", "/tmp/t/a/2", "/tmp/t/a/b"]
    assert "/tmp/t/a/b/3" in names(3)
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("/tmp/t", depth=0)


def test_make_dir(sandbox):
    assert sandbox.files.make_dir("/tmp/new/deep")
    assert not sandbox.files.make_dir("/tmp/new/deep")
    assert sandbox.files.get_info("/tmp/new/deep").type == FileType.DIR
    sandbox.files.write("/tmp/plain", "x")
    with pytest.raises(SandboxException):
        sandbox.files.make_dir("/tmp/plain")


def test_rename(sandbox):
    sandbox.files.write("/tmp/old", "x")
    info = sandbox.files.rename("/tmp/old", "/tmp/fresh/new")
    assert info.path == "/tmp/fresh/new"
    assert not sandbox.files.exists("/tmp/old") and sandbox.files.read("/tmp/fresh/new") == "x"


def test_remove(sandbox):
    sandbox.files.write("/tmp/r/a/b", "x")
    sandbox.files.remove("/tmp/r")
    assert not sandbox.files.exists("/tmp/r")
    sandbox.files.remove("/tmp/r")


def test_watch(sandbox):
    sandbox.files.make_dir("/tmp/w")
    sandbox.files.write("/tmp/w/old", "x")
    handle = sandbox.files.watch_dir("/tmp/w")
    sandbox.files.write("/tmp/w/old", "y")
    sandbox.files.write("/tmp/w/new", "y")
    sandbox.files.rename("/tmp/w/new", "/tmp/w/newer")
    sandbox.files.remove("/tmp/w/newer")
    wanted = {("write", "old"), ("create", "new"), ("write", "new"), ("rename", "new"), ("create", "newer"), ("remove", "newer")}
    seen = drain(handle, wanted)
    assert seen == wanted
    handle.stop()
    with pytest.raises(SandboxException):
        handle.get_new_events()


def test_watch_of_a_command_s_writes(sandbox):
    handle = sandbox.files.watch_dir("/tmp")
    sandbox.commands.run("echo x > /tmp/by-command")
    wanted = {("create", "by-command"), ("write", "by-command")}
    assert drain(handle, wanted) == wanted
    handle.stop()


def test_watch_below(sandbox):
    sandbox.files.write("/tmp/deep/a/b/old", "x")
    handle = sandbox.files.watch_dir("/tmp/deep", recursive=True)
    sandbox.files.write("/tmp/deep/a/b/old", "y")
    assert drain(handle, {("write", "a/b/old")}) == {("write", "a/b/old")}
    sandbox.files.write("/tmp/deep/a/b/c", "x")
    wanted = {("create", "a/b/c"), ("write", "a/b/c")}
    assert drain(handle, wanted) == wanted
    handle.stop()


def test_watching_what_is_no_directory(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("/no/such/directory")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.watch_dir("/etc/passwd")


def drain(handle, wanted):
    import time

    seen = set()
    for _ in range(50):
        seen |= {(event.type.value, event.name) for event in handle.get_new_events()}
        if wanted <= seen:
            break
        time.sleep(0.1)
    return seen
