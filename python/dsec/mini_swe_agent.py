"""The environment of mini-swe-agent: `environment_class: dsec.mini_swe_agent.DsecEnvironment`. See docs/mini-swe-agent.md.

Each environment is a sandbox of its own. It is stopped by `cleanup()`, else when the environment is forgotten or the
program ends.
"""

from __future__ import annotations

import os
import platform
import weakref
from typing import Any, Literal
from uuid import uuid4

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict

import dsec

from . import _harness

__all__ = ["DsecEnvironment", "DsecEnvironmentConfig"]

OUTPUT_BYTES_MAX = 64 << 20
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
ONE_STREAM = 'exec "$@" 2>&1'
"""A model reads what a terminal would show: both streams, in order."""
UNAME = {"system": "-s", "node": "-n", "release": "-r", "version": "-v", "machine": "-m"}


class DsecEnvironmentConfig(BaseModel):
    """The keys that are not mini-swe-agent's own are the arguments of `dsec.Sandbox.create`."""

    model_config = ConfigDict(extra="forbid")

    image: str
    cwd: str = ""
    """Where commands start; the image's directory unless told otherwise."""
    env: dict[str, str] = {}
    forward_env: list[str] = []
    """Variables of this program that commands see; those of `env` go before."""
    timeout: float = 30
    """Seconds for a command; then all that it started is killed."""
    interpreter: list[str] = ["bash", "-lc"]
    user: str | None = None
    workspaces: list[str] = []
    toolkits: list[str] = []
    memory: int | str | None = None
    cpu: float | None = None
    disk: int | str | None = None
    network: Literal["none", "egress"] = "none"
    ttl: float = _harness.TTL_SECONDS_DEFAULT


class DsecEnvironment:
    """Runs each command of an agent in one sandbox."""

    def __init__(self, *, config_class: type[DsecEnvironmentConfig] = DsecEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        forwarded = {key: value for key in self.config.forward_env if (value := os.environ.get(key)) is not None}
        self.sandbox = _harness.create_waiting(
            self.config.image,
            workspaces=self.config.workspaces,
            toolkits=self.config.toolkits,
            labels=_harness.labels("mini-swe-agent"),
            env=forwarded | self.config.env,
            user=self.config.user,
            memory=self.config.memory,
            cpu=self.config.cpu,
            disk=self.config.disk,
            network=self.config.network,
            ttl=self.config.ttl,
        )
        self._stop = weakref.finalize(self, _stop, self.sandbox)
        self._uname: dict[str, str] | None = None

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """What the command wrote and its exit code, as mini-swe-agent shows it to the model."""
        command = ["sh", "-c", ONE_STREAM, "sh", *self.config.interpreter, action.get("command", "")]
        within = timeout or self.config.timeout
        try:
            result = self._exec(command, cwd or self.config.cwd or None, within)
        except dsec.Error as e:
            return _failed("", e)
        if result.timed_out:
            return _failed(result.stdout, TimeoutError(f"the command timed out after {within:g} seconds"))
        if result.reason == "sandbox_gone":
            return _failed(result.stdout, RuntimeError(f"the sandbox {self.sandbox.id} has ended"))
        self._submitted(result)
        return {"output": result.stdout, "returncode": result.exit_code, "exception_info": ""}

    def _exec(self, command: list[str], cwd: str | None, timeout: float) -> dsec.ExecResult:
        key = uuid4().hex
        try:
            return self.sandbox.exec(
                command, cwd=cwd, timeout=timeout, max_output=OUTPUT_BYTES_MAX, idempotency_key=key
            )
        except KeyboardInterrupt:
            # With the same key this is the command that runs, not a second one. It is not to go on by itself.
            self.sandbox.spawn(command, cwd=cwd, timeout=timeout, idempotency_key=key).kill()
            raise

    def _submitted(self, result: dsec.ExecResult) -> None:
        """Ends the agent where the command said that the task is done."""
        first, _, submission = result.stdout.lstrip().partition("\n")
        if first.strip() == DONE and result.ok:
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The configuration, and the system as it is inside."""
        if self._uname is None:
            said = self.sandbox.exec("".join(f"uname {flag};" for flag in UNAME.values()))
            self._uname = platform.uname()._asdict() | dict(zip(UNAME, said.stdout.splitlines()))
        return dict(recursive_merge(self.config.model_dump(), self._uname, kwargs))

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """Stops the sandbox."""
        self._stop()


def _failed(output: str, error: Exception) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _stop(sandbox: dsec.Sandbox) -> None:
    try:
        sandbox.stop()
    except dsec.NotFound:
        pass
