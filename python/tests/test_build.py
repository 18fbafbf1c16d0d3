"""Builds of Dockerfiles, by both faces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import dsec
import pytest
from conftest import Node

FILE = """\
FROM debian
ARG WHO
USER root
COPY a /srv/a
RUN echo "hi $WHO" > /srv/said
LABEL org.example.a=b
EXPOSE 80
USER user
CMD never
"""


@pytest.fixture
def context(node: Node, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "Dockerfile").write_text(FILE)
    (tmp_path / "a").write_text("a")
    (tmp_path / "answer.key").write_text("42")
    yield tmp_path
    images = dsec.Images()
    images.prune()
    for image in images.list():
        if image.name.startswith("built"):
            images.remove(f"{image.name}:{image.version}")


def test_a_dockerfile_becomes_an_image(context: Path) -> None:
    images = dsec.Images()
    built = images.build(context, tag="built:1", arguments={"WHO": "me"}, skip="CMD")
    assert (built.steps_run, built.steps_cached) == (2, 0)
    image = built.image
    assert (image.name, image.version, image.user) == ("built", "1", "user")
    assert (image.labels, image.exposed_ports) == ({"org.example.a": "b"}, ["80/tcp"])
    assert image.built_on is not None
    with dsec.Sandbox.create("built:1") as sandbox:
        assert sandbox.exec("cat /srv/a /srv/said; id -un").stdout == "ahi me\nuser\n"
    again = images.build(str(context), tag="built:2", arguments={"WHO": "me"}, skip=["CMD"])
    assert (again.steps_run, again.steps_cached, again.image.digest) == (0, 2, image.digest)
    tagged = images.tag("built:2", "built", version="3")
    assert tagged.digest == image.digest
    assert len(images.prune()) >= 2 and images.inspect("built:3").layers == image.layers


def test_what_cannot_be_built_says_why(context: Path) -> None:
    images = dsec.Images()
    with pytest.raises(dsec.Unsupported, match="line 9: CMD"):
        images.build(context)
    (context / "Dockerfile").write_text("FROM debian\nRUN echo the end; exit 3\n")
    with pytest.raises(dsec.InvalidArgument, match=r"(?s)line 2: .*code 3.*the end"):
        images.build(context, tag="built:1")
    with pytest.raises(dsec.NotFound):
        images.inspect("built:1")
    with pytest.raises(dsec.NotFound):
        images.build(context / "none")


def test_a_cancelled_build_stops_its_sandbox(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM debian\nRUN sleep 600\n")

    async def steps() -> list[dsec.SandboxInfo]:
        return [one for one in await dsec.AsyncSandbox.list() if "dsec.build" in one.labels]

    async def main() -> None:
        building = asyncio.create_task(dsec.AsyncImages().build(context, timeout=300))
        while not await steps():
            await asyncio.sleep(0.02)
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        for _ in range(500):
            if not await steps():
                return
            await asyncio.sleep(0.02)
        raise AssertionError("its sandbox is there still")

    asyncio.run(main())
