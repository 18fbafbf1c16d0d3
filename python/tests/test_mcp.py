"""The official package of MCP drives `dsec mcp`: a witness that knows nothing of ours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import dsec
import httpx2
import pytest
from conftest import Node
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# The handshake of old, and what the package does by itself: it asks first, and speaks the newest version.
MODES = ["legacy", "auto"]


class Server:
    """One of the two ways in, to a `dsec mcp` with these flags."""

    def __init__(self, node: Node, way: str, mode: Any) -> None:
        self.node, self.way, self.mode = node, way, mode
        self.key = ""

    @asynccontextmanager
    async def client(self, *flags: str) -> AsyncIterator[Client]:
        if self.way == "stdio":
            env = {"DSEC_CONTEXT": str(self.node.context)}
            program = StdioServerParameters(command=str(self.node.binary), args=["mcp", *flags], env=env)
            async with Client(program, mode=self.mode) as client:
                yield client
            return
        with listening(self.node, *flags) as url:
            headers = {"Authorization": f"Bearer {self.key or key(self.node)}"}
            async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300)) as http:
                async with Client(streamable_http_client(url, http_client=http), mode=self.mode) as client:
                    yield client


@pytest.fixture(params=[(way, mode) for way in ("stdio", "http") for mode in MODES], ids="-".join)
def server(request: pytest.FixtureRequest, node: Node) -> Server:
    way, mode = request.param
    return Server(node, way, mode)


def key(node: Node) -> str:
    lines = node.context.read_text().splitlines()
    return next(line for line in lines if line.startswith("api_key")).split('"')[1]


class listening:  # noqa: N801
    """A `dsec mcp --listen`; at its end it must end well."""

    def __init__(self, node: Node, *flags: str) -> None:
        env = {**os.environ, "DSEC_DATA": str(node.data)}
        command = [str(node.binary), "mcp", "--listen", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self) -> str:
        assert self.process.stdout
        return str(self.process.stdout.readline()).removeprefix("listening on ").strip()

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert self.process.stdout
        self.process.stdout.close()


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    # The package has held the answer against the schema that the tool promised.
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
    return result.structured_content


async def fail(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return json.loads(result.content[0].text)["error"]  # type: ignore[union-attr]


async def test_a_session_of_its_own(server: Server) -> None:
    async with server.client("--image", "debian") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"exec", "read_file", "write_file", "list_dir", "fetch_port"} < set(tools)
        assert tools["read_file"].annotations and tools["read_file"].annotations.read_only_hint
        assert tools["exec"].annotations and tools["exec"].annotations.destructive_hint

        done = await call(client, "exec", command="echo out; echo err >&2; exit 3")
        assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "out\n", "err\n")
        done = await call(client, "exec", command=["cat"], stdin="\u2264\n", cwd="/tmp", env={"A": "b"}, user="root")
        assert done["stdout"] == "\u2264\n"
        await call(client, "write_file", path="work/a.py", content="print(6 * 7)\n")
        assert (await call(client, "exec", command=["python3", "work/a.py"]))["stdout"] == "42\n"
        assert (await call(client, "read_file", path="work/a.py"))["content"] == "print(6 * 7)\n"
        assert [e["kind"] for e in (await call(client, "list_dir", path="work"))["entries"]] == ["file"]

        web = await call(client, "exec", command="exec python3 -m http.server 8000 -d work", background=True)
        for _ in range(100):
            page = await client.call_tool("fetch_port", {"port": 8000, "path": "/a.py"})
            if not page.is_error:
                break
            await asyncio.sleep(0.1)
        assert page.structured_content["body"] == "print(6 * 7)\n"
        log = await call(client, "exec_output", exec_id=web["exec_id"], wait_s=10)
        assert log["running"] and "GET /a.py" in log["stderr"]
        await call(client, "exec_kill", exec_id=web["exec_id"])
        end = await call(client, "exec_output", exec_id=web["exec_id"], wait_s=10)
        assert (end["running"], end["exit_code"]) == (False, 137)
        [row] = (await call(client, "list_sandboxes"))["sandboxes"]
        assert row["image"] == "debian"
    assert dsec.Sandbox.list() == []


async def test_errors_are_answers(server: Server) -> None:
    async with server.client("--image", "debian") as client:
        assert (await fail(client, "read_file", path="none"))["code"] == "not_found"
        assert (await fail(client, "exec", command=7))["code"] == "invalid_argument"
        assert (await fail(client, "exec", command="true", surprise=1))["code"] == "invalid_argument"
        assert (await fail(client, "create_sandbox", image="none"))["code"] == "not_found"
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("nothing", {})
        assert (await call(client, "exec", command="true"))["exit_code"] == 0


async def test_output_is_bounded(server: Server) -> None:
    async with server.client("--image", "debian") as client:
        done = await call(client, "exec", command="yes", timeout_s=1)
        assert done["truncated"] and len(done["stdout"]) < 31_000 and "bytes left out" in done["stdout"]
        assert done["reason"] == "timeout"


async def test_a_cancelled_call_ends_its_command(server: Server) -> None:
    async with server.client("--image", "debian") as client:
        await call(client, "exec", command="true")
        running = asyncio.create_task(client.call_tool("exec", {"command": "sleep 86477; echo", "timeout_s": 600}))
        look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 8647[7]'"
        for _ in range(100):
            if (await call(client, "exec", command=look))["stdout"] != "0\n":
                break
            await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(100):
            left = (await call(client, "exec", command=look))["stdout"]
            if left == "0\n":
                break
            await asyncio.sleep(0.1)
        assert left == "0\n"


async def test_calls_at_once(server: Server) -> None:
    async with server.client("--image", "debian") as client:
        calls = [call(client, "exec", command=f"sleep 0.{i % 3}; echo {i}") for i in range(20)]
        assert [done["stdout"] for done in await asyncio.gather(*calls)] == [f"{i}\n" for i in range(20)]
        assert len((await call(client, "list_sandboxes"))["sandboxes"]) == 1


async def test_one_sandbox(server: Server, sandbox: dsec.Sandbox) -> None:
    async with server.client("--sandbox", sandbox.id) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert not names & {"create_sandbox", "stop_sandbox", "list_sandboxes"}
        await call(client, "write_file", path="a", content="b")
    assert sandbox.files.read_text("a") == "b"


async def test_sandboxes_of_ones_own_making(server: Server) -> None:
    async with server.client() as client:
        assert {"image": "debian:latest", "kind": "base"} in (await call(client, "list_images"))["images"]
        made = await call(client, "create_sandbox", image="debian", ttl_s=300)
        done = await call(client, "exec", sandbox=made["sandbox"], command="echo hi")
        assert done["stdout"] == "hi\n"
        assert (await fail(client, "exec", command="echo hi"))["code"] == "invalid_argument"
        await call(client, "stop_sandbox", sandbox=made["sandbox"])


async def test_the_key(node: Node) -> None:
    server = Server(node, "http", "legacy")
    server.key = "dsec_wrong"
    with pytest.raises(Exception):  # noqa: B017, PT011
        async with server.client("--image", "debian"):
            pass


@pytest.fixture(autouse=True)
def nothing_left(node: Node) -> Iterator[None]:
    yield
    assert [info for info in dsec.Sandbox.list() if info.state != "stopping"] == []
