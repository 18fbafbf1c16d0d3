"""Terminals."""

import threading
import time

import pytest
from e2b import CommandExitException, NotFoundException, PtySize


class Screen:
    """Reads a terminal in a thread, since its handle blocks."""

    def __init__(self, handle):
        self.text = b""
        self.result = None
        self.error = None
        self.thread = threading.Thread(target=self.read, args=(handle,), daemon=True)
        self.thread.start()

    def read(self, handle):
        def keep(data):
            self.text += data

        try:
            self.result = handle.wait(on_pty=keep)
        except Exception as error:
            self.error = error

    def until(self, text):
        for _ in range(200):
            if text in self.text:
                return
            time.sleep(0.05)
        raise AssertionError(f"{text!r} not in {self.text!r}")


def test_input_output_and_exit(sandbox):
    handle = sandbox.pty.create(size=PtySize(rows=30, cols=100), cwd="/tmp", envs={"A": "b"})
    screen = Screen(handle)
    sandbox.pty.send_stdin(handle.pid, b"echo $A-$((40+2))-$(pwd)-$(whoami)\n")
    screen.until(b"b-42-/tmp-user")
    sandbox.pty.send_stdin(handle.pid, b"tty; echo $TERM; exit 3\n")
    screen.thread.join(20)
    assert isinstance(screen.error, CommandExitException) and screen.error.exit_code == 3
    assert b"/dev/pts/" in screen.text and b"xterm" in screen.text


def test_size_and_resize(sandbox):
    handle = sandbox.pty.create(size=PtySize(rows=30, cols=100))
    screen = Screen(handle)
    sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    screen.until(b"30 100")
    sandbox.pty.resize(handle.pid, PtySize(rows=50, cols=120))
    sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    screen.until(b"50 120")
    assert sandbox.pty.kill(handle.pid)


def test_kill(sandbox):
    handle = sandbox.pty.create(size=PtySize(rows=24, cols=80))
    screen = Screen(handle)
    assert sandbox.pty.kill(handle.pid)
    screen.thread.join(20)
    assert isinstance(screen.error, CommandExitException) and screen.error.exit_code == 137
    assert not sandbox.pty.kill(handle.pid)


def test_interrupt(sandbox):
    handle = sandbox.pty.create(size=PtySize(rows=24, cols=80))
    screen = Screen(handle)
    sandbox.pty.send_stdin(handle.pid, b"sleep 1000\n")
    time.sleep(1)
    sandbox.pty.send_stdin(handle.pid, b"\x03")
    sandbox.pty.send_stdin(handle.pid, b"echo alive-$((1+1))\n")
    screen.until(b"alive-2")
    sandbox.pty.kill(handle.pid)


def test_connect_again(sandbox):
    if not hasattr(sandbox.pty, "connect"):
        pytest.skip("this version cannot connect to a terminal")
    handle = sandbox.pty.create(size=PtySize(rows=24, cols=80))
    handle.disconnect()
    screen = Screen(sandbox.pty.connect(handle.pid))
    sandbox.pty.send_stdin(handle.pid, b"echo again-$((2+2))\n")
    screen.until(b"again-4")
    sandbox.pty.kill(handle.pid)


def test_root(sandbox):
    handle = sandbox.pty.create(size=PtySize(rows=24, cols=80), user="root")
    screen = Screen(handle)
    sandbox.pty.send_stdin(handle.pid, b"echo I-am-$(id -u)\n")
    screen.until(b"I-am-0")
    sandbox.pty.kill(handle.pid)


def test_what_is_not_there(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.pty.send_stdin(999_999, b"x")
    # Older versions let the error of the protocol through.
    with pytest.raises(Exception, match="not found|not_found"):
        sandbox.pty.resize(999_999, PtySize(rows=1, cols=1))
