"""Exceptions, and arguments that are checked before anything is sent. Most needs no node."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta
from pathlib import Path

import dsec
import pytest
from dsec import _errors, _options

DOCS = Path(__file__).parents[2] / "docs"


def test_every_code_of_the_documentation_has_its_class() -> None:
    codes = re.findall(r"^\| `([a-z_]+)` \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert len(codes) == 19
    for code in codes:
        error = _errors.make(code, "why", "r1", 0.5)
        assert type(error) is getattr(dsec, code.title().replace("_", ""))
        assert (error.code, error.message, error.request_id, error.retry_after) == (code, "why", "r1", 0.5)
        assert str(error) == f"{code}: why (request r1)"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    assert type(_errors.make("of_the_future", "x", None, None)) is dsec.Error


def test_a_request_id_comes_with_an_error_of_the_server(node: object) -> None:
    with pytest.raises(dsec.NotFound) as e:
        dsec.Sandbox.connect("sb-e1-00000000000000000000000000")
    assert e.value.request_id and e.value.retry_after is None


def test_a_server_that_is_not_there(node: object) -> None:
    nowhere = dsec.Client("http://127.0.0.1:9", "key")
    with pytest.raises(dsec.Internal, match="is it up"):
        dsec.Sandbox.list(client=nowhere)
    with pytest.raises(dsec.Unauthenticated):
        dsec.Sandbox.list(client=dsec.Client(dsec.Client().url, "wrong"))
    with pytest.raises(dsec.InvalidArgument):
        dsec.Client("ftp://x", "key")
    assert "key" not in repr(nowhere)


def test_no_server_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSEC_CONTEXT", str(tmp_path / "none.toml"))
    with pytest.raises(dsec.Unauthenticated, match="dsec up"):
        dsec.Sandbox.list()
    monkeypatch.setenv("DSEC_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DSEC_API_KEY", "k")
    assert dsec.Client().url == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(4096, 4096), ("4096", 4096), ("512MiB", 512 << 20), ("2G", 2 << 30), ("1.5gib", 3 << 29), (" 1 KB ", 1024), ("7B", 7)],
)
def test_sizes(text: int | str, expected: int) -> None:
    assert _options.size("memory", text) == expected


@pytest.mark.parametrize("text", ["", "x", "1Q", "-1", -1, 1.5, None, True, "1MiBs"])
def test_no_sizes(text: object) -> None:
    with pytest.raises(dsec.InvalidArgument, match="memory"):
        _options.size("memory", text)  # type: ignore[arg-type]


def test_durations() -> None:
    assert _options.milliseconds("ttl", 1.5) == 1500
    assert _options.milliseconds("ttl", timedelta(hours=1)) == 3_600_000
    assert _options.milliseconds("ttl", 0.0001) == 1
    for bad in (0, -1, float("nan"), float("inf"), "1s", None, timedelta(0)):
        with pytest.raises(ValueError, match="ttl"):
            _options.milliseconds("ttl", bad)  # type: ignore[arg-type]


def test_wrong_types_are_refused(sandbox: dsec.Sandbox) -> None:
    with pytest.raises(TypeError):
        sandbox.exec(["echo", 1])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        sandbox.files.write("a", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sandbox.exec(["true"], env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        dsec.Sandbox.create("debian", memry=1)  # type: ignore[call-arg]
    with pytest.raises(dsec.InvalidArgument, match="command"):
        sandbox.exec([])
    with pytest.raises(dsec.InvalidArgument):
        dsec.Sandbox.create("debian", network="lan")  # type: ignore[arg-type]
