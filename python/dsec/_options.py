"""Arguments as people write them, to what the native half takes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict, Union

from ._errors import InvalidArgument

Command = Union[str, Sequence[str]]
"""A text for the sandbox's `/bin/sh -c`, or an argument vector that nothing parses."""
Size = Union[int, str]
"""A number of bytes, or "512MiB", "2G" (binary: 1K is 1024)."""
Duration = Union[int, float, timedelta]
"""Seconds, or a timedelta."""
Data = Union[str, bytes, bytearray, memoryview]
"""Text is sent as UTF-8."""
Layers = Union[str, Sequence[str]]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class SpecOptions(TypedDict, total=False):
    """The keyword arguments of `create` and `create_many`."""

    workspaces: Layers
    toolkits: Layers
    name: str | None
    labels: Mapping[str, str] | None
    env: Mapping[str, str] | None
    user: str | None
    workdir: str | None
    hostname: str | None
    memory: Size | None
    cpu: float | None
    disk: Size | None
    pids: int | None
    ttl: Duration | None
    network: Literal["none", "egress"]
    scratch: Literal["disk", "memory"]
    qos: Literal["latency_sensitive", "best_effort"]


def size(field: str, value: Size) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 0:
            return value
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        return round(float(found[1]) * _FACTORS[found[2].upper()])
    raise InvalidArgument(f"{field}: {value!r} is not a size: give a number of bytes, or text as '512MiB'")


def milliseconds(field: str, value: Duration) -> int:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return max(1, round(value * 1000))
    raise InvalidArgument(f"{field}: {value!r} is not a duration: give seconds above 0, or a timedelta")


def data(value: Data) -> bytes | bytearray:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, memoryview):
        return bytes(value)
    raise TypeError(f"expected str or bytes, not {type(value).__name__}")


def spec(
    image: str,
    *,
    workspaces: Layers = (),
    toolkits: Layers = (),
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    workdir: str | None = None,
    hostname: str | None = None,
    memory: Size | None = None,
    cpu: float | None = None,
    disk: Size | None = None,
    pids: int | None = None,
    ttl: Duration | None = None,
    network: Literal["none", "egress"] = "none",
    scratch: Literal["disk", "memory"] = "disk",
    qos: Literal["latency_sensitive", "best_effort"] = "latency_sensitive",
) -> str:
    """The JSON of a `SandboxSpec`."""
    asked: dict[str, Any] = {
        "image": image,
        "workspaces": _layers(workspaces),
        "toolkits": _layers(toolkits),
        "name": name,
        "labels": dict(labels or {}),
        "env": dict(env or {}),
        "user": user,
        "workdir": workdir,
        "hostname": hostname,
        "network": network,
        "scratch": scratch,
        "qos": qos,
    }
    if memory is not None:
        asked["memory_bytes_max"] = size("memory", memory)
    if cpu is not None:
        asked["cpu_millis_max"] = round(cpu * 1000)
    if disk is not None:
        asked["disk_bytes_max"] = size("disk", disk)
    if pids is not None:
        asked["pids_max"] = pids
    if ttl is not None:
        asked["ttl_ms"] = milliseconds("ttl", ttl)
    return json.dumps({field: value for field, value in asked.items() if value is not None})


def _layers(names: Layers) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


@dataclass(slots=True)
class ExecOptions:
    """What the native half reads of a command."""

    command: str | list[str]
    env: dict[str, str] | None
    cwd: str | None
    user: str | None
    stdin: bytes | bytearray | None
    stdin_stream: bool
    pty: tuple[int, int] | None
    timeout_ms: int | None
    output_bytes_max: int | None
    idempotency_key: str | None


def exec_options(
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: Data | None = None,
    stdin_stream: bool = False,
    pty: bool | tuple[int, int] = False,
    timeout: Duration | None = None,
    max_output: Size | None = None,
    idempotency_key: str | None = None,
) -> ExecOptions:
    terminal = pty if isinstance(pty, tuple) else (24, 80) if pty else None
    return ExecOptions(
        command=command if isinstance(command, str) else list(command),
        env=None if env is None else dict(env),
        cwd=cwd,
        user=user,
        stdin=None if stdin is None else data(stdin),
        stdin_stream=stdin_stream,
        pty=terminal,
        timeout_ms=None if timeout is None else milliseconds("timeout", timeout),
        output_bytes_max=None if max_output is None else size("max_output", max_output),
        idempotency_key=idempotency_key,
    )


def wait_ms(value: Duration | None) -> int | None:
    return None if value is None else milliseconds("request_timeout", value)


def import_query(
    name: str,
    *,
    kind: Literal["base", "workspace", "toolkit"],
    version: str,
    prefix: str | None,
    owner: str | None,
    user: str | None,
    workdir: str | None,
    env: Mapping[str, str] | None,
) -> str:
    asked = {"name": name, "kind": kind, "version": version, "prefix": prefix, "owner": owner}
    asked |= {"user": user, "workdir": workdir}
    if env:
        asked["env"] = "\n".join(f"{key}={value}" for key, value in env.items())
    return json.dumps({field: value for field, value in asked.items() if value is not None})


def pull_request(
    reference: str,
    *,
    name: str | None,
    version: str | None,
    kind: Literal["base", "workspace", "toolkit"],
    platform: str | None,
    credentials: tuple[str, str] | None,
    plain_http: bool,
) -> str:
    asked: dict[str, object] = {"reference": reference, "name": name, "version": version, "kind": kind}
    asked |= {"platform": platform, "plain_http": plain_http}
    if credentials:
        asked["credentials"] = {"username": credentials[0], "password": credentials[1]}
    return json.dumps({field: value for field, value in asked.items() if value is not None})


def build_options(
    *,
    tag: str | None,
    dockerfile: str | os.PathLike[str] | None,
    arguments: Mapping[str, str] | None,
    network: Literal["none", "egress"],
    memory: Size | None,
    cpu: float | None,
    disk: Size | None,
    timeout: Duration | None,
    skip: Layers,
    exclude: Layers,
    shell_history: bool,
    caches: bool,
    no_cache: bool,
) -> str:
    asked: dict[str, Any] = {"tag": tag, "network": network, "no_cache": no_cache}
    asked["dockerfile"] = None if dockerfile is None else os.fspath(dockerfile)
    asked["arguments"] = dict(arguments or {})
    asked["memory_bytes_max"] = None if memory is None else size("memory", memory)
    asked["disk_bytes_max"] = None if disk is None else size("disk", disk)
    asked["cpu_millis_max"] = None if cpu is None else round(cpu * 1000)
    asked["timeout_ms"] = None if timeout is None else milliseconds("timeout", timeout)
    asked["skip"] = _layers(skip)
    asked["scrub"] = {"exclude": _layers(exclude), "shell_history": shell_history, "caches": caches}
    return json.dumps({field: value for field, value in asked.items() if value is not None})


def fork_request(
    count: int,
    *,
    checkpoint: str | None,
    ttl: Duration | None,
    labels: Mapping[str, str] | None,
    idempotency_key: str | None,
) -> str:
    asked: dict[str, Any] = {"count": count, "checkpoint": checkpoint, "idempotency_key": idempotency_key}
    asked["ttl_ms"] = None if ttl is None else milliseconds("ttl", ttl)
    asked["labels"] = dict(labels or {})
    return json.dumps({field: value for field, value in asked.items() if value is not None})


def pack_request(
    name: str,
    *,
    version: str,
    kind: Literal["base", "workspace", "toolkit"],
    exclude: Layers,
    shell_history: bool,
    caches: bool,
    git_unreachable: bool,
    newer_than: str | None,
) -> str:
    scrub: dict[str, Any] = {
        "shell_history": shell_history,
        "caches": caches,
        "git_unreachable": git_unreachable,
    }
    scrub["exclude"] = [exclude] if isinstance(exclude, str) else list(exclude)
    if newer_than is not None:
        scrub["newer_than"] = newer_than
    return json.dumps({"name": name, "version": version, "kind": kind, "scrub": scrub})


def merge_request(version: str, threshold: Size | None) -> str:
    """The JSON of a `MergeRequest`."""
    asked: dict[str, Any] = {"version": version}
    if threshold is not None:
        asked["threshold_bytes"] = size("threshold", threshold)
    return json.dumps(asked)


def environment_request(
    name: str,
    image: str,
    *,
    version: str,
    workspaces: Layers,
    toolkits: Layers,
    follow: Layers,
    env: Mapping[str, str] | None,
    user: str | None,
    workdir: str | None,
) -> str:
    """The JSON of an `EnvironmentRequest`."""
    return json.dumps(
        {
            "name": name,
            "version": version,
            "image": image,
            "workspaces": _layers(workspaces),
            "toolkits": _layers(toolkits),
            "follow": _layers(follow),
            "env": dict(env or {}),
            "user": user,
            "workdir": workdir,
        }
    )
