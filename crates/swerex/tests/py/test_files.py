"""Commands apart from sessions, and files, as Python's own functions do them."""

import pathlib

import pytest
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SwerexException
from swerex.runtime.abstract import ReadFileRequest, UploadRequest, WriteFileRequest


async def read(rex, path, **options):
    return (await rex.runtime.read_file(ReadFileRequest(path=path, **options))).content


async def write(rex, path, content):
    await rex.runtime.write_file(WriteFileRequest(path=path, content=content))


async def test_execute(rex):
    done = await rex.execute(["printf", "%s|", "a b", "c"])
    assert (done.stdout, done.stderr, done.exit_code) == ("a b|c|", "", 0)
    done = await rex.execute("echo out; echo err >&2; exit 3", shell=True)
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert (await rex.execute(["sh", "-c", "kill -9 $$"])).exit_code == -9
    assert (await rex.execute("pwd", shell=True, cwd="/tmp")).stdout == "/tmp\n"
    assert (await rex.execute(["echo $0 $1", "a", "b"], shell=True)).stdout == "a b\n"
    assert "HOME" not in (await rex.execute("env", shell=True, env={"A": "b c"})).stdout
    assert (await rex.execute(["/usr/bin/env"], env={"A": "b c"})).stdout == "A=b c\n"
    assert (await rex.execute("printf '\\377'", shell=True)).stdout == "\\xff"
    # What is left in the background does not hold the answer back.
    assert (await rex.execute("sleep 100 & echo here", shell=True, timeout=10)).stdout == "here\n"


async def test_what_execute_raises(rex):
    with pytest.raises(NonZeroExitCodeError, match=r"mine: Command 'echo o; exit 3' failed with exit code 3. Stdout:"):
        await rex.execute("echo o; exit 3", shell=True, check=True, error_msg="mine")
    with pytest.raises(CommandTimeoutError, match=r"Timeout \(0.3s\) exceeded"):
        await rex.execute("sleep 1003 & sleep 1003", shell=True, timeout=0.3)
    assert "1003" not in (await rex.execute("cat /proc/[0-9]*/cmdline", shell=True)).stdout.replace("cat", "")
    with pytest.raises(FileNotFoundError, match="'no-such-program'"):
        await rex.execute(["no-such-program"])
    with pytest.raises(FileNotFoundError, match="'/nowhere'"):
        await rex.execute("pwd", shell=True, cwd="/nowhere")
    with pytest.raises(PermissionError, match="/etc/passwd"):
        await rex.execute("/etc/passwd")
    with pytest.raises(ValueError, match="null byte"):
        await rex.execute(["a\0b"])


async def test_texts(rex):
    await write(rex, "new/dir/a.txt", "naïve\n\ttext\0\n")
    assert await read(rex, "/home/user/new/dir/a.txt") == "naïve\n\ttext\0\n"
    await write(rex, "new/dir/a.txt", "")
    assert await read(rex, "new/dir/a.txt") == ""
    await rex.execute("printf 'a\\r\\nb\\rc\\377' >/tmp/odd", shell=True)
    with pytest.raises(SwerexException, match="codec can't decode byte 0xff in position 6"):
        await read(rex, "/tmp/odd")
    assert await read(rex, "/tmp/odd", errors="replace") == "a\nb\nc\ufffd"
    assert await read(rex, "/tmp/odd", errors="backslashreplace") == "a\nb\nc\\xff"
    assert await read(rex, "/tmp/odd", encoding="latin-1") == "a\nb\nc\xff"
    with pytest.raises(LookupError):
        await read(rex, "/tmp/odd", encoding="klingon")


async def test_what_files_raise(rex):
    for path, error in [("nothing", FileNotFoundError), ("/etc", IsADirectoryError), ("/etc/shadow", PermissionError)]:
        with pytest.raises(error, match=path):
            await read(rex, path)
    for path, error in [("/etc/new", PermissionError), ("/tmp", IsADirectoryError), ("/etc/passwd/x", OSError)]:
        with pytest.raises(error):
            await write(rex, path, "x")
    await rex.execute("truncate -s 40M /tmp/large; mkfifo /tmp/fifo", shell=True)
    with pytest.raises(SwerexException, match="read it in parts"):
        await read(rex, "/tmp/large")
    for path in ("/tmp/fifo", "/dev/zero"):
        with pytest.raises(Exception):  # noqa: B017, PT011
            await read(rex, path)


async def test_uploads(rex, tmp_path: pathlib.Path):
    (tmp_path / "tree/sub/empty").mkdir(parents=True)
    (tmp_path / "tree/a.txt").write_text("a")
    (tmp_path / "tree/sub/b.bin").write_bytes(bytes(range(256)) * 5000)
    await rex.runtime.upload(UploadRequest(source_path=str(tmp_path / "tree"), target_path="/tmp/deep/er/tree"))
    found = (await rex.execute("cd /tmp/deep/er/tree && find . | sort && cksum sub/b.bin && ls -l a.txt", shell=True)).stdout
    assert found.split()[:5] == [".", "./a.txt", "./sub", "./sub/b.bin", "./sub/empty"]
    assert "1280000 sub/b.bin" in found and "-rw-r--r-- 1 user user 1 " in found
    await rex.runtime.upload(UploadRequest(source_path=str(tmp_path / "tree/sub/b.bin"), target_path="here/b"))
    assert (await rex.execute("cmp here/b /tmp/deep/er/tree/sub/b.bin", shell=True)).exit_code == 0
    # Over what is there already.
    await rex.runtime.upload(UploadRequest(source_path=str(tmp_path / "tree"), target_path="/tmp/deep/er/tree"))
    with pytest.raises(PermissionError):
        await rex.runtime.upload(UploadRequest(source_path=str(tmp_path / "tree/a.txt"), target_path="/etc/a"))
    with pytest.raises(PermissionError):
        await rex.runtime.upload(UploadRequest(source_path=str(tmp_path / "tree"), target_path="/etc/tree"))
