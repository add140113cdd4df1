"""What reading objects costs: the sums that the engine keeps, and ``fffs stat`` of a mount of objects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from inside import Totals, totals
from mounting import Mounts, counters_of, wait_until
from object_server import ObjectServer, flip, status

import fffs

COUNT = 30
LENGTH = 5000


@pytest.fixture
def url(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An object with records of LENGTH bytes, and a cache that is used."""
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    with fffs.FileWriter(tmp_path / "r.ffr", COUNT) as writer:
        for k in range(COUNT):
            writer.write_one(bytes([k]) * LENGTH)
    return server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())


def since(before: Totals) -> dict[str, int]:
    after = asdict(totals())
    return {name: after[name] - value for name, value in asdict(before).items()}


def test_requests_and_bytes_are_counted(server: ObjectServer, url: str) -> None:
    before, size = totals(), len(server.objects["/r.ffr"])

    def agree() -> bool:
        """Whether the sums are those of the server. They may differ while a part is fetched ahead."""
        sums, served = since(before), list(server.requests)
        return (sums["requests"], sums["fetched"]) == (len(served), sum(min(r.end, size) - r.start for r in served))

    with fffs.FileReader(url) as reader:
        opened = since(before)
        reader.read(range(COUNT))
        wait_until(agree)
        first = since(before)
        reader.read(range(COUNT))
        second = since(before)
    assert first["asked"] - opened["asked"] == COUNT * LENGTH
    assert first["hits"] <= first["asked"]
    assert second["hits"] - first["hits"] == COUNT * LENGTH
    assert second["asked"] - first["asked"] == COUNT * LENGTH
    assert not any(second[name] for name in ("retries", "errors", "damaged_records", "damaged_blocks"))


def test_refused_requests_are_counted(server: ObjectServer, url: str) -> None:
    with fffs.FileReader(url) as reader:
        before = totals()
        server.faults += [status(503, Retry_After="0"), status(500)]
        reader.read([3])
        found = since(before)
    assert (found["requests"], found["retries"], found["errors"]) == (3, 2, 2)


def test_a_sidecar_that_does_not_exist_is_no_error(server: ObjectServer, tmp_path: Path) -> None:
    from fffs import ofrecord

    with ofrecord.OFRecordWriter(tmp_path / "part-0") as writer:
        writer.write_one(b"x")
    before = totals()
    fffs.FileReader(server.put("part-0", (tmp_path / "part-0").read_bytes())).close()
    assert since(before)["errors"] == 0
    assert len(server.requests) > 1


def test_damage_on_the_way_is_counted(server: ObjectServer, url: str) -> None:
    with fffs.FileReader(url) as reader:
        before = totals()
        server.faults.append(flip(6000))
        reader.read([20])
        assert since(before)["damaged_records"] == 1


def test_damage_in_the_cache_is_counted(server: ObjectServer, url: str, tmp_path: Path) -> None:
    with fffs.FileReader(url) as reader:
        reader.read([20])
        path = next((tmp_path / "cache").glob("*.data"))
        data = bytearray(path.read_bytes())
        data[data.index(bytes([20]) * LENGTH) + 10] ^= 1
        path.write_bytes(data)
        before = totals()
        reader.read([20])
        assert since(before)["damaged_records"] == 1


def stat(path: Path, *arguments: str) -> str:
    return subprocess.check_output([sys.executable, "-m", "fffs", "stat", *arguments, path], text=True, timeout=60)


@pytest.mark.fuse
def test_a_mount_of_an_object_shows_what_its_store_was_asked(server: ObjectServer, url: str, mounts: Mounts) -> None:
    point = mounts(url)  # type: ignore[arg-type]
    for name in sorted(os.listdir(point))[:3]:
        (point / name).read_bytes()
    sums: dict[str, Any] = counters_of(point)["objects"]
    assert sums["asked"] >= 3 * LENGTH
    text = stat(point)
    assert (found := re.search(r"^store +(\d+) requests?, 0 of them again, 0 failed$", text, re.M))
    assert int(found[1]) >= sums["requests"]
    assert re.search(r"^cache +had .*, .* were missing$", text, re.M)
    # A part that is fetched ahead is counted when it is there.
    wait_until(lambda: json.loads(stat(point, "--json"))["objects"]["requests"] == len(server.requests))


@pytest.mark.fuse
def test_a_mount_of_files_shows_no_store(mounts: Mounts, url: str, tmp_path: Path) -> None:
    point = mounts(tmp_path / "r.ffr")
    assert counters_of(point)["objects"] is None
    assert not re.search("^(store|cache) ", stat(point), re.M)
