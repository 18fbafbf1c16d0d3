"""How the sync face runs a call: it waits, without the GIL, and lets signals in ten times a second."""

from __future__ import annotations

from typing import TypeVar

from ._dsec import Call

T = TypeVar("T")


def run(call: Call[T]) -> T:
    return call.wait()
