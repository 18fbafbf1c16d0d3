"""How a task of inspect_ai says which sandboxes its samples get: an image's name, a file, or a `DsecConfig`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ._harness import TTL_SECONDS_DEFAULT
from ._options import SpecOptions

CONFIG_FILES = ["dsec.yaml", "dsec.yml", "dsec.toml"]
"""Found beside a task that names no configuration."""

# As the Docker provider has it, so that a task need not be written anew: `${SAMPLE_METADATA_IMAGE:-debian}`.
_REFERENCE = re.compile(r"\$\{SAMPLE_METADATA_(\w+)(?::-([^}]*))?\}")


class DsecSandbox(BaseModel, frozen=True):
    """The arguments of `dsec.Sandbox.create`."""

    model_config = ConfigDict(extra="forbid")

    image: str = Field(min_length=1)
    workspaces: list[str] = []
    toolkits: list[str] = []
    env: dict[str, str] = {}
    user: str | None = None
    workdir: str | None = None
    hostname: str | None = None
    memory: int | str | None = None
    cpu: float | None = None
    disk: int | str | None = None
    pids: int | None = None
    ttl: float = TTL_SECONDS_DEFAULT
    network: Literal["none", "egress"] = "none"
    scratch: Literal["disk", "memory"] = "disk"
    qos: Literal["latency_sensitive", "best_effort"] = "latency_sensitive"

    def layers(self) -> list[str]:
        return [self.image, *self.workspaces, *self.toolkits]

    def options(self, labels: Mapping[str, str]) -> SpecOptions:
        """All but the image, as keywords of `create`."""
        return cast(SpecOptions, self.model_dump(exclude={"image"}) | {"labels": labels})


class DsecConfig(BaseModel, frozen=True):
    """`sandboxes` by name; `default`, else the first, is what `sandbox()` gives. One sandbox alone may be written
    without it: `DsecConfig(image="debian", memory="1GiB")`."""

    model_config = ConfigDict(extra="forbid")

    sandboxes: dict[str, DsecSandbox] = Field(min_length=1)

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)

    @model_validator(mode="before")
    @classmethod
    def _one(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "sandboxes" not in data:
            return {"sandboxes": {"default": data}}
        return data

    def __hash__(self) -> int:
        # inspect_ai keeps configurations in a set; the dictionaries inside have no hash.
        return hash(json.dumps(self.model_dump(), sort_keys=True))

    def in_order(self) -> dict[str, DsecSandbox]:
        """The default first."""
        first = "default" if "default" in self.sandboxes else next(iter(self.sandboxes))
        return {first: self.sandboxes[first]} | self.sandboxes


class MissingMetadata(ValueError):
    """The configuration refers to metadata that the sample has not."""


def read(config: BaseModel | str | None, metadata: Mapping[str, Any]) -> DsecConfig:
    """What is asked for, with the sample's metadata put in. Raises `ValueError` or `OSError`."""
    match config:
        case None:
            raise ValueError(f"name an image (--sandbox dsec:debian), or put {CONFIG_FILES[0]} beside the task")
        case DsecConfig():
            asked: Any = config.model_dump(exclude_unset=True)
        case str() if config.endswith((".yaml", ".yml")):
            asked = yaml.safe_load(Path(config).read_text("utf-8"))
        case str() if config.endswith(".toml"):
            asked = tomllib.loads(Path(config).read_text("utf-8"))
        case str():
            # inspect_ai takes it for a file and puts the task's directory before it; no image has a slash in its name.
            asked = {"image": config.rpartition("/")[2]}
        case _:
            raise ValueError(f"expected an image, a file or a DsecConfig, not {type(config).__name__}")
    named = {key.replace(" ", "_").upper(): value for key, value in metadata.items()}
    return DsecConfig.model_validate(_filled(asked, named))


def _filled(value: Any, metadata: Mapping[str, Any]) -> Any:
    """References to metadata replaced, in all texts at any depth."""
    if isinstance(value, Mapping):
        return {key: _filled(one, metadata) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, metadata) for one in value]
    if not isinstance(value, str):
        return value

    def fill(reference: re.Match[str]) -> str:
        name, default = reference[1], reference[2]
        found = metadata.get(name, default)
        if found is None:
            raise MissingMetadata(f"the sample has no metadata `{name}`, which {reference[0]} refers to")
        return str(found)

    return _REFERENCE.sub(fill, value)
