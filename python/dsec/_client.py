"""Which server, and with which key."""

from __future__ import annotations

from . import _dsec

_default: Client | None = None


class Client:
    """One DSec server. Of `url` and `api_key`, what is not given comes from `DSEC_URL` and `DSEC_API_KEY`, else from
    the context file that `dsec up` wrote (`$DSEC_CONTEXT`, else `~/.config/dsec/context.toml`).

    Both faces share it; it is safe in threads and after `os.fork()`. Nothing is sent yet.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        self._native = _dsec.Client(url, api_key)

    @property
    def url(self) -> str:
        return self._native.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"


def native(client: Client | None) -> _dsec.Client:
    """The given one, else the one that the environment names now, with its connections kept from call to call."""
    global _default
    if client is not None:
        return client._native
    named = Client()
    if _default is None or not _default._native.same(named._native):
        _default = named
    return _default._native
