"""Every example of docs/python.md, run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/python.md"
EXAMPLES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_has_them() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```python") == 7


@pytest.mark.parametrize("code", [pytest.param(code, id=title) for title, code in EXAMPLES])
def test_example(code: str, node: object, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
