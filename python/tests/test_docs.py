"""Every example of the pages about Python, run as it stands; and of some the walk by the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Node

DOCS = Path(__file__).parents[2] / "docs"
# Page, its examples, the first Python that has what they use, and what a warning is: not all of them are of our making.
PAGES = [
    ("python.md", 8, (3, 10), "error"),
    ("disk.md", 1, (3, 10), "error"),
    ("environments.md", 1, (3, 10), "error"),
    ("mini-swe-agent.md", 1, (3, 10), "ignore"),
    ("mcp.md", 2, (3, 10), "ignore"),
    ("inspect.md", 1, (3, 11), "ignore"),
    ("harbor.md", 1, (3, 12), "ignore"),
]
# Pages with a walk through the command line.
SHELL_PAGES = ["build.md", "disk.md"]
EXAMPLE = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[tuple[str, str]]:
    return EXAMPLE.findall((DOCS / page).read_text())


@pytest.mark.parametrize(("page", "count"), [one[:2] for one in PAGES])
def test_the_page_has_them(page: str, count: int) -> None:
    assert len(examples(page)) == (DOCS / page).read_text().count("```python") == count


@pytest.mark.parametrize(
    ("code", "warning"),
    [
        pytest.param(
            code, warning, id=f"{page}: {title}", marks=pytest.mark.skipif(sys.version_info < python, reason="Python")
        )
        for page, _, python, warning in PAGES
        for title, code in examples(page)
    ],
)
def test_example(code: str, warning: str, node: Node, tmp_path: Path) -> None:
    done = run([sys.executable, "-I", "-W", warning, "-c", code], node, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("page", SHELL_PAGES)
def test_the_walk_by_the_command_line(page: str, node: Node, tmp_path: Path) -> None:
    walks = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert walks
    for walk in walks:
        done = run(["bash", "-eu", "-o", "pipefail", "-c", walk], node, tmp_path)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def run(command: list[str], node: Node, where: Path) -> subprocess.CompletedProcess[str]:
    # Some call the program by its name.
    env = {**os.environ, "PATH": f"{node.binary.parent}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=120)
