"""``fffs cache``: what is in the cache of objects, whether it is right, and removing it while others use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from inside import cache_settings, cache_space, cache_upkeep, caching, crc32
from mounting import Mounts, run_fffs
from object_server import ObjectServer

import fffs
from fffs import ofrecord
from fffs.errors import Exit, UsageError

BLOCK = 4096
COUNT = 30
LENGTH = 5000


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """A file without checksums: those of the cache are the only ones."""
    with ofrecord.OFRecordWriter(tmp_path / "part-0") as writer:
        for k in range(COUNT):
            writer.write_one(bytes([k + 1]) * LENGTH)
    return (tmp_path / "part-0").read_bytes()


def read_all(url: str) -> None:
    with fffs.FileReader(url) as reader:
        assert [bytes(record) for record in reader.read(range(COUNT))] == [
            bytes([k + 1]) * LENGTH for k in range(COUNT)
        ]


@pytest.fixture
def urls(server: ObjectServer, cache: Path, content: bytes) -> list[str]:
    """Three objects that the cache has, of which the first was used last."""
    found = [server.put(f"o{k}/part-0", content) for k in range(3)]
    for k, url in enumerate(found):
        read_all(url)
        for path in cache.glob("*.data"):
            if path.stat().st_mtime > 1e9:
                os.utime(path, (3000 - k, 3000 - k))
    return found


def run(*arguments: Any, code: int = 0) -> str:
    """Run a command, and return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "fffs", "cache", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def names(cache: Path) -> list[str]:
    with caching(cache):
        return [entry.version.name for entry in cache_upkeep.list_cached(cache_settings()).entries if entry.version]


def files_of(cache: Path, url: str) -> tuple[Path, Path]:
    with caching(cache):
        (entry,) = (
            e for e in cache_upkeep.list_cached(cache_settings()).entries if e.version and e.version.name == url
        )
    return cache / f"{entry.key}.data", cache / f"{entry.key}.map"


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


# ---------------------------------------------------------------- ls


def test_a_line_for_each_object(urls: list[str], cache: Path, content: bytes) -> None:
    with fffs.FileReader(urls[1]):
        lines = run("ls").splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == [urls[2], urls[0]]
    assert lines[3].endswith(f"{urls[1]} (in use)")  # the one that was opened last
    size = re.escape(f"{len(content) / 1000:.1f} KB")
    assert re.fullmatch(rf" +{size} +\d+\.\d KB +\d+ %  1970-01-01 \d\d:\d\d  {re.escape(urls[2])}", lines[1])
    assert re.fullmatch(rf"total: 3 objects, \d+\.\d KB of at most .*, in {re.escape(str(cache))}", lines[4])


def test_a_listing_as_json(urls: list[str], cache: Path, content: bytes) -> None:
    found = json.loads(run("ls", "--json", "--cache", cache))
    assert found["folder"] == str(cache)
    assert found["cached_bytes"] == sum(entry["cached_bytes"] for entry in found["objects"]) >= 3 * COUNT * LENGTH
    assert found["limit_bytes"] > found["cached_bytes"]
    assert [entry["name"] for entry in found["objects"]] == urls[::-1]
    assert {entry["size"] for entry in found["objects"]} == {len(content)}
    assert {entry["in_use"] for entry in found["objects"]} == {False}
    assert all(90 < entry["share_percent"] <= 100 for entry in found["objects"])


def test_no_folder_has_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing"
    assert run("ls", "--cache", missing) == f"total: 0 objects, 0 B; {missing} does not exist\n"
    assert json.loads(run("ls", "--json", "--cache", missing))["objects"] == []
    assert run("verify", "--cache", missing) == "ok: 0 blocks of 0 objects\n"
    assert run("prune", "--all", "--cache", missing).startswith("freed 0 B")
    assert not missing.exists()


def test_caches_that_are_off_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", "off")
    for action in (["ls"], ["verify"], ["prune", "--all"]):
        run(*action, code=2)


def test_a_signature_is_neither_in_the_cache_nor_in_a_listing(
    server: ObjectServer, cache: Path, content: bytes
) -> None:
    server.objects["/x?X-Amz-Signature=secret"] = content
    with fffs.FileReader(f"{server.url}/x?X-Amz-Signature=secret", format="ofrecord") as reader:
        reader.read([1])
    assert "/x?…" in run("ls")
    assert "secret" not in run("ls") + run("ls", "--json") + run("verify", "--json")
    assert not any(b"secret" in path.read_bytes() for path in cache.iterdir())


def test_names_do_not_control_the_terminal(server: ObjectServer, cache: Path, content: bytes) -> None:
    read_all(server.put("%1b[2J/part-0", content))
    assert "\x1b" not in run("ls")


def test_foreign_files_are_neither_listed_nor_removed(urls: list[str], cache: Path) -> None:
    for name in ("notes.data", "x.map", f"{'0' * 39}.data", "README"):
        (cache / name).write_text("mine")
    (cache / f"{'0' * 40}.data").symlink_to("/etc/passwd")
    (cache / f"{'1' * 40}.data").mkdir()
    assert len(run("ls").splitlines()) == 5
    run("verify")
    run("prune", "--all")
    assert len(list(cache.iterdir())) == 6
    assert Path("/etc/passwd").exists()


def test_a_head_that_is_nested_too_deeply_is_damaged(cache: Path) -> None:
    text, key = b"[" * 3000, "2" * 40
    cache.mkdir(exist_ok=True)
    (cache / f"{key}.map").write_bytes(cache_space._HEAD.pack(cache_space.MAGIC, len(text), crc32(text)) + text)
    folder = os.open(cache, os.O_RDONLY)
    try:
        assert cache_space.read_version(folder, key) is None
    finally:
        os.close(folder)


# ---------------------------------------------------------------- verify


def test_a_good_cache(urls: list[str], content: bytes) -> None:
    blocks = 3 * -(-len(content) // BLOCK)
    assert run("verify") == f"ok: {blocks} blocks of 3 objects\n"


def test_damaged_blocks_are_dropped_and_fetched_again(server: ObjectServer, urls: list[str], cache: Path) -> None:
    data, _ = files_of(cache, urls[1])
    for block in (0, 3, 17):
        flip(data, block * BLOCK + 100)
    found = json.loads(run("verify", "--json", code=Exit.RECORDS))
    assert found["damaged"] == 3
    assert [entry["damaged"] for entry in found["objects"] if entry["name"] == urls[1]] == [3]
    assert run("verify").startswith("ok: ")
    requests = len(server.requests)
    read_all(urls[1])
    assert len(server.requests) > requests + 1  # more than the question for the version
    assert run("verify").startswith("ok: ")


def test_the_text_names_the_damaged_object(urls: list[str], cache: Path) -> None:
    flip(files_of(cache, urls[2])[1], BLOCK + 4 * 5)  # an entry of the map
    assert re.match(rf"{re.escape(urls[2])}: 1 of \d+ blocks dropped\n$", run("verify", code=Exit.RECORDS))


def test_data_that_was_cut_off(urls: list[str], cache: Path) -> None:
    data, _ = files_of(cache, urls[0])
    os.truncate(data, 10 * BLOCK + 7)
    assert json.loads(run("verify", "--json", code=Exit.RECORDS))["damaged"] > 10
    read_all(urls[0])
    assert run("verify").startswith("ok: ")


@pytest.mark.parametrize("content_of_map", [b"", b"x" * 9000, b"fffsOBJ1" + b"\xff" * 5000])
def test_a_damaged_map_costs_its_object(urls: list[str], cache: Path, content_of_map: bytes) -> None:
    data, map = files_of(cache, urls[0])
    map.write_bytes(content_of_map)
    assert "unknown, its map is damaged" in run("ls")
    assert re.search("map is damaged .*: removed", run("verify", code=Exit.RECORDS))
    assert not data.exists()
    assert not map.exists()
    assert run("verify").startswith("ok: ")
    read_all(urls[0])


def test_a_map_of_another_object_is_damage(urls: list[str], cache: Path) -> None:
    (_, first), (_, second) = files_of(cache, urls[0]), files_of(cache, urls[1])
    first.write_bytes(second.read_bytes())
    assert len(names(cache)) == 2
    run("verify", code=Exit.RECORDS)
    assert sorted(names(cache)) == sorted(urls[1:])


def test_an_object_that_is_open_may_be_verified(urls: list[str], cache: Path) -> None:
    with fffs.FileReader(urls[0]) as reader:
        flip(files_of(cache, urls[0])[0], 10)
        run("verify", code=Exit.RECORDS)
        assert bytes(reader.read_one(20)) == bytes([21]) * LENGTH


# ---------------------------------------------------------------- prune


def test_prune_by_name(urls: list[str], cache: Path) -> None:
    said = run("prune", urls[1])
    assert re.match(rf"removed: {re.escape(urls[1])}, [\d.]+ KB\nfreed [\d.]+ KB; 2 objects of [\d.]+ KB left", said)
    assert sorted(names(cache)) == [urls[0], urls[2]]
    run("prune", urls[1], code=Exit.NO_ENTRY)
    assert sorted(names(cache)) == [urls[0], urls[2]]


def test_prune_of_a_signed_name_shows_no_signature(urls: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fffs", "cache", "prune", f"{urls[0]}?secret"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.NO_ENTRY
    assert "secret" not in done.stdout + done.stderr


def test_prune_keeps_the_last_used_ones(urls: list[str], cache: Path) -> None:
    size = json.loads(run("ls", "--json"))["objects"][0]["cached_bytes"]
    run("prune", "--keep", 2 * size)
    assert names(cache) == [urls[1], urls[0]]
    run("prune", "--keep", "100%")
    assert names(cache) == [urls[1], urls[0]]
    run("prune", "--keep", "0")
    assert names(cache) == []


def test_prune_all(urls: list[str], cache: Path) -> None:
    run("prune", "--all")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["--all", "--keep", "1G"], ["--all", "x"], ["--keep", "much"]])
def test_prune_wants_one_thing(urls: list[str], cache: Path, arguments: list[str]) -> None:
    run("prune", *arguments, code=2)
    assert len(names(cache)) == 3


def test_what_is_open_is_never_removed(server: ObjectServer, urls: list[str], cache: Path) -> None:
    with fffs.FileReader(urls[2]) as reader:
        requests = len(server.requests)
        assert f"in use: {urls[2]}" in run("prune", "--all")
        assert f"in use: {urls[2]}" in run("prune", urls[2])
        assert names(cache) == [urls[2]]
        reader.read(range(COUNT))
        assert len(server.requests) == requests
    run("prune", "--all")
    assert names(cache) == []


# ---------------------------------------------------------------- others at the same time


@pytest.mark.fuse
def test_a_mount_is_read_while_its_cache_is_verified_and_pruned(
    server: ObjectServer, cache: Path, mounts: Mounts, tmp_path: Path
) -> None:
    for k in range(200):
        path = tmp_path / "src" / f"d{k % 5}" / f"f{k}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(k * 397))
    fffs.pack_folder(tmp_path / "src", tmp_path / "p.ffr")
    others = [server.put(f"o{k}", (tmp_path / "p.ffr").read_bytes()) for k in range(2)]
    for other in others:
        with fffs.FileReader(other) as reader:
            reader.read(range(reader.n))
    point = mounts(server.put("p.ffr", (tmp_path / "p.ffr").read_bytes()))  # type: ignore[arg-type]
    readers = [
        subprocess.Popen(["diff", "-r", tmp_path / "src", point], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    while any(reader.poll() is None for reader in readers):
        for arguments in (["verify"], ["prune", "--all"], ["ls"]):
            assert cache_command(*arguments) == 0
    assert [reader.communicate()[0] for reader in readers] == [""] * 4
    assert [reader.returncode for reader in readers] == [0] * 4
    assert names(cache) == [f"{server.url}/p.ffr"]


def cache_command(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "fffs", "cache", *arguments], stdout=subprocess.DEVNULL, check=False
    ).returncode


def test_readers_and_prunes_at_once(urls: list[str], cache: Path) -> None:
    stop = threading.Event()
    with caching(cache):
        settings = cache_settings()

    def prune() -> None:
        while not stop.is_set():
            cache_upkeep.prune_cached(settings, 0)
            cache_upkeep.verify_cached(settings)

    thread = threading.Thread(target=prune)
    thread.start()
    try:
        for k in range(60):
            read_all(urls[k % 3])
    finally:
        stop.set()
        thread.join()
    assert all(result.damaged == 0 for result in cache_upkeep.verify_cached(settings))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_users_cache_is_neither_read_nor_changed(urls: list[str], cache: Path, in_public: Path) -> None:
    folder = in_public / "cache"
    shutil.move(cache, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code = (
        "import os, sys\n"
        "from fffs.cli.program import run\n"
        "run(['cache', 'prune', '--all', '--cache', '/none'])  # imports modules that nobody else may read\n"
        "os.setgid(65534)\nos.setuid(65534)\nsys.exit(run(sys.argv[1:]))"
    )
    for action in (["ls"], ["verify"], ["prune", "--all"]):
        command = [sys.executable, "-c", code, "cache", *action, "--cache", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (Exit.READ, f"fffs: {folder}: cannot read: Permission denied\n")
    os.chown(folder, 65534, 65534)  # as root, who could read it
    said = run_fffs("cache", "ls", "--cache", folder, code=Exit.READ)
    assert "other users may write to it, or own it" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_wrong_settings_are_usage_errors(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE_SIZE", "much")
    run("ls", code=2)
    with pytest.raises(UsageError, match="FFFS_CACHE_SIZE"):
        cache_settings()
