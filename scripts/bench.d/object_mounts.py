"""The mount of a pack in SeaweedFS, against mounts of its files as single objects: rclone and s3fs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import data
import object_servers as servers
from figures import Figure, Report, progress, seconds

import fffs

FILES, FEW = 10_000, 2_000
READ, READ_SLOWLY = 2_000, 200  # files that are read through our mount, and through others
FIRST_READ, WALK = 20.0, 50.0  # goals


def run(report: Report, scratch: Path, delay: int, quick: bool) -> None:
    """Mount a pack and its files, with and without latency."""
    rivals = {name: mount for name, mount in (("rclone", _rclone), ("s3fs", _s3fs)) if shutil.which(name)}
    if len(rivals) < 2:
        report.skip("mounts of objects", "needs rclone and s3fs (Debian packages of these names)")
        return
    count = FEW if quick else FILES
    folder = data.photo_folder(scratch, count)
    with _seaweedfs(scratch) as weed:
        _upload(weed, scratch, folder)
        with servers.delayed(int(weed.endpoint.rpartition(":")[2]), delay, scratch) as late:
            for endpoint, what in ((weed.endpoint, ""), (f"http://127.0.0.1:{late}", f", {delay} ms latency")):
                environment = _without_proxies() | weed.environment | {"AWS_ENDPOINT_URL": endpoint}
                with _fffs(weed, environment, scratch) as ours:
                    rates = _rates(ours, READ)
                for name, mount in rivals.items():
                    progress(f"objects: mount against {name}{what}")
                    with mount(weed, environment, scratch) as theirs:
                        others = _rates(theirs, READ_SLOWLY)
                    for k, (measure, unit, goal) in enumerate(
                        (("first read", "files/s", FIRST_READ), ("walk", "entries/s", WALK))
                    ):
                        ratio = rates[k] / others[k]
                        row = Figure("objects", f"mount: {measure}{what}", rates[k], unit, others[k], name, ratio, goal)
                        report.add(row)
    progress("")


def _without_proxies() -> dict[str, str]:
    """Return the environment without what would lead to another server, or to certificates that rclone refuses."""
    return {k: v for k, v in os.environ.items() if not (k.upper().endswith("_PROXY") or k.startswith("AWS_"))}


def _rates(mounted: Path, count: int) -> tuple[float, float]:
    """Return entries per second of a walk with stat, in a fresh mount, and files per second of a first read."""
    found: list[Path] = []

    def walk() -> None:
        for folder, _, names in os.walk(mounted):
            for name in names:
                found.append(Path(folder, name))
                os.stat(found[-1])

    needed = seconds(walk)
    chosen = sorted(found)[:count]
    return count / seconds(lambda: [path.read_bytes() for path in chosen]), len(found) / needed


# ---------------------------------------------------------------- the server


@contextlib.contextmanager
def _seaweedfs(scratch: Path) -> Iterator[Any]:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from weed import Weed

    with tempfile.TemporaryDirectory(dir=scratch) as name:
        server = Weed(Path(name))
        try:
            yield server
        finally:
            server.end()


def _upload(weed: Any, scratch: Path, folder: Path) -> None:
    """Store the files, and a pack of them."""
    import obstore

    store = weed.store()
    pack = scratch / f"{folder.name}.ffr"
    data.kept(pack, lambda path: fffs.pack_folder(folder, path))
    progress("objects: storing the files")
    obstore.put(store, "pack.ffr", pack)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: obstore.put(store, f"files/{path.relative_to(folder)}", path), paths))


# ---------------------------------------------------------------- mounts


@contextlib.contextmanager
def _mounted(command: list[Any], environment: dict[str, str], target: Path) -> Iterator[Path]:
    target.mkdir(exist_ok=True)
    subprocess.run(command, env=environment, check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", target], check=True)
        target.rmdir()


@contextlib.contextmanager
def _fffs(weed: Any, environment: dict[str, str], scratch: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "fffs", "mount", f"s3://{weed.bucket}/pack.ffr", scratch / "mount-fffs"]
        with _mounted(command, environment | {"FFFS_CACHE": cache}, scratch / "mount-fffs") as target:
            yield target


@contextlib.contextmanager
def _rclone(weed: Any, environment: dict[str, str], scratch: Path) -> Iterator[Path]:
    options = {"TYPE": "s3", "PROVIDER": "Other", "ENV_AUTH": "true", "ENDPOINT": environment["AWS_ENDPOINT_URL"]}
    settings = {f"RCLONE_CONFIG_WEED_{name}": value for name, value in options.items()}
    command = ["rclone", "mount", f"weed:{weed.bucket}/files", scratch / "mount-rclone", "--daemon", "--read-only"]
    with _mounted(command, environment | settings, scratch / "mount-rclone") as target:
        yield target


@contextlib.contextmanager
def _s3fs(weed: Any, environment: dict[str, str], scratch: Path) -> Iterator[Path]:
    options = f"use_path_request_style,url={environment['AWS_ENDPOINT_URL']},ro,endpoint=us-east-1"
    command = ["s3fs", f"{weed.bucket}:/files", scratch / "mount-s3fs", "-o", options]
    variables = {"AWSACCESSKEYID": weed.key_id, "AWSSECRETACCESSKEY": weed.secret}
    with _mounted(command, environment | variables, scratch / "mount-s3fs") as target:
        yield target
