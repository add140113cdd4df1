"""The whole way of a user with a store: pack into it, mount from it, train from it, while its server is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from mounting import Mounts
from weed import Weed, clear_environment

import fffs.torch

CLASSES, FILES, WORKERS, BATCH = 4, 60, 4, 8


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Weed]:
    """A server of its own, which the test may kill."""
    (tmp_path / "weed").mkdir()
    found = Weed(tmp_path / "weed")
    clear_environment(monkeypatch, tmp_path)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    yield found
    found.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a subfolder for each class. The first bytes of a file say which it is."""
    source, content = tmp_path / "photos", random.Random(5)
    for k in range(CLASSES * FILES):
        path = source / f"class{k % CLASSES}" / f"{k:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(k.to_bytes(4, "big") + content.randbytes(content.randrange(200_000)))
    return source


def _run(*arguments: object) -> None:
    done = subprocess.run([sys.executable, "-m", "fffs", *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def _as_tensor(data: Any) -> torch.Tensor:
    return torch.from_numpy(data)


def _wanted(folder: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in folder.rglob("*.jpg")}


@pytest.mark.fuse
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than processors
def test_the_whole_way_of_a_user(
    server: Weed, folder: Path, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("pack", folder, "s3://test/photos.ffr")
    assert server.uploads() == []
    subprocess.run(["diff", "-r", folder, mounts(cast(Any, "s3://test/photos.ffr"))], check=True)
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "another cache"))
    wanted = _wanted(folder)
    photos = fffs.torch.PackedFolder("s3://test/photos.ffr", transform=_as_tensor)
    order = torch.Generator().manual_seed(1)
    loader: Any = fffs.torch.DataLoader(
        photos, batch_size=BATCH, shuffle=True, num_workers=WORKERS, generator=order, collate_fn=list
    )
    for _ in range(2):  # the second epoch comes from the cache
        seen = {}
        for number, batch in enumerate(loader):
            if number == 5:
                server.kill()
                server.start(wait=False)
            for data, target in batch:
                content = data.numpy().tobytes()
                k = int.from_bytes(content[:4], "big")
                assert photos.classes[target] == f"class{k % CLASSES}"
                seen[k] = content
        assert seen == wanted


@pytest.mark.fuse
def test_a_server_that_is_killed_under_a_mount(server: Weed, folder: Path, mounts: Mounts) -> None:
    """Readers wait until it is back; nothing wrong and no error leaves the mount."""
    _run("pack", folder, "s3://test/photos.ffr")
    point = mounts(cast(Any, "s3://test/photos.ffr"))
    first = sorted(folder.rglob("*.jpg"))[0].relative_to(folder)
    assert (point / first).read_bytes() == (folder / first).read_bytes()
    assert len(os.listdir(point)) == CLASSES
    server.kill()
    server.start(wait=False)
    subprocess.run(["diff", "-r", folder, point], check=True)
