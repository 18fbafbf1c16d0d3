"""The catalogue and environments, by both faces."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Iterator
from pathlib import Path

import dsec
import pytest
from dsec import AsyncEnvironments, Sandbox


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[dsec.Images]:
    """With a workspace and a toolkit; what starts with "cat-" goes again."""
    images, environments = dsec.Images(), dsec.Environments()
    layer(images, tmp_path, "cat-work", "workspace", "srv/work", "work")
    layer(images, tmp_path, "cat-tool", "toolkit", "opt/tool", "one")
    yield images
    for environment in environments.list():
        if environment.name.startswith("cat-"):
            environments.remove(f"{environment.name}:{environment.version}")
    for image in images.list():
        if image.name.startswith("cat-"):
            images.remove(f"{image.name}:{image.version}")


def layer(images: dsec.Images, tmp: Path, name: str, kind: dsec.LayerKind, path: str, text: str) -> dsec.ImageInfo:
    tree = tmp / f"{name}-{text}"
    (tree / path).parent.mkdir(parents=True)
    (tree / path).write_text(text)
    return images.import_path(name, tree, kind=kind)


def test_an_environment_is_created_used_and_removed(catalogue: dsec.Images, tmp_path: Path) -> None:
    environments = dsec.Environments()
    made = environments.create(
        "cat-env", "debian", workspaces="cat-work", toolkits=["cat-tool"], env={"A": "b"}, user="root", workdir="/srv"
    )
    assert [part.kind for part in made.parts] == ["base", "workspace", "toolkit"]
    assert (made.env["A"], made.user, made.workdir, made.in_use, made.uses) == ("b", "root", "/srv", 0, 0)
    assert made.last_used is None
    follows = environments.create("cat-env", "debian", version="2", toolkits="cat-tool", follow="toolkit")
    assert [part.follow for part in follows.parts] == [False, True]
    layer(catalogue, tmp_path, "cat-tool", "toolkit", "opt/tool", "two")
    with Sandbox.create("cat-env") as sandbox:
        assert sandbox.exec("id -un; pwd; cat work /opt/tool; echo $A").stdout == "root\n/srv\nworkoneb\n"
        assert environments.inspect("cat-env").in_use == 1
        with pytest.raises(dsec.Conflict):
            environments.remove("cat-env")
    with Sandbox.create("cat-env:2") as sandbox:
        assert sandbox.exec("cat /opt/tool").stdout == "two"
    after = environments.inspect("cat-env")
    assert after.uses == 1 and after.last_used is not None and after.digest == made.digest
    with pytest.raises(dsec.AlreadyExists):
        environments.create("cat-env", "debian")
    with pytest.raises(dsec.NotFound):
        environments.create("cat-other", "nosuch")
    environments.remove("cat-env")
    with pytest.raises(dsec.NotFound):
        environments.inspect("cat-env")


def test_an_image_is_merged_and_exported(catalogue: dsec.Images, tmp_path: Path) -> None:
    dsec.Environments().create("cat-env", "debian", workspaces="cat-work", toolkits="cat-tool")
    merged = catalogue.merge("cat-env", "flat")
    assert (merged.name, merged.version, len(merged.layers)) == ("cat-env", "flat", 1)
    with pytest.raises(dsec.AlreadyExists):
        catalogue.merge("cat-env", "flat")
    with pytest.raises(dsec.InvalidArgument):
        catalogue.merge("cat-env", "x", threshold="1K")
    archive = tmp_path / "work.tar"
    assert catalogue.export("cat-work", archive, format="tar") == archive.stat().st_size
    with tarfile.open(archive) as tar:
        assert "srv/work" in [name.removeprefix("./") for name in tar.getnames()]
    with pytest.raises(dsec.NotFound):
        catalogue.export("nosuch", tmp_path / "nosuch.tar")
    assert not list(tmp_path.glob("nosuch*"))


def test_without_a_store_that_is_said(catalogue: dsec.Images) -> None:
    for call in (lambda: catalogue.publish("cat-work"), lambda: catalogue.list_store()):
        with pytest.raises(dsec.Unsupported):
            call()


async def test_the_async_face(catalogue: dsec.Images) -> None:
    environments = AsyncEnvironments()
    created = await asyncio.gather(
        *(environments.create(f"cat-{n}", "debian", workspaces="cat-work") for n in range(8))
    )
    assert len({one.digest for one in created}) == 1
    assert {one.name for one in await environments.list()} >= {f"cat-{n}" for n in range(8)}
    async with await dsec.AsyncSandbox.create("cat-3") as sandbox:
        assert (await sandbox.exec("cat /srv/work")).stdout == "work"
    assert (await environments.inspect("cat-3")).uses == 1
    await environments.remove("cat-0")
