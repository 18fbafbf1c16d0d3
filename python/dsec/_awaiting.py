"""How the async face runs a call: as a future of the running asyncio loop."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from weakref import WeakKeyDictionary

from ._dsec import Bridge, Call

T = TypeVar("T")

_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = WeakKeyDictionary()


def _bridge(loop: asyncio.AbstractEventLoop) -> Bridge:
    bridge = _bridges[loop] = Bridge()
    # The loop keeps the bridge, and the bridge nothing of the loop: both go together.
    loop.add_reader(bridge.fileno(), bridge.drain)
    return bridge


async def run(call: Call[T]) -> T:
    """Cancelled, it stops waiting. The answer is taken where nothing can come between it and the caller."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop) or _bridge(loop)
    try:
        await call.start(loop, bridge)
    except BaseException:
        call.abort()
        raise
    return call.answer()
