"""The examples of docs/swerex.md."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[4] / "docs" / "swerex.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example):
    exec(compile(example, str(PAGE), "exec"), {"__name__": "__main__"})
