"""What `pip install` gives: the command, the server, types."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sysconfig
from pathlib import Path

import dsec
from conftest import Node


def test_the_command_and_the_agent_are_installed() -> None:
    scripts = Path(sysconfig.get_path("scripts"))
    said = subprocess.run([scripts / "dsec", "--version"], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["dsec", dsec.__version__] == ["dsec", importlib.metadata.version("dsec")]
    assert (scripts / "aether").stat().st_mode & 0o111


def test_the_package_is_typed_and_nothing_else_came_along() -> None:
    files = [str(f) for f in importlib.metadata.files("dsec") or []]
    assert "dsec/py.typed" in files and "dsec/_dsec.pyi" in files
    assert not [f for f in files if "test" in f or "sync_face" in f]


def test_the_command_sees_what_the_package_made(node: Node, sandbox: dsec.Sandbox) -> None:
    assert sandbox.id in node.cli("ls", "--json")
    assert node.cli("exec", sandbox.id, "--", "echo", "by hand") == "by hand\n"
