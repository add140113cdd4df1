"""Packs small objects of a store on Dask and on Ray, with a worker killed in each; mounts the set, and trains from it.

Usage: objects.py PYTHON [COUNT], where PYTHON has Dask and Ray. See scripts/cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS, LARGEST, IN_FOLDER = 20, 8192, 500
NOISE = random.Random(1).randbytes(1 << 20)


def path_of(k: int) -> str:
    """Return the path of object k."""
    return f"class{k // IN_FOLDER:04}/{k:06}.jpg"


def content_of(path: str) -> bytes:
    """Return what an object of this path has."""
    seed = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "little")
    begin = seed % (len(NOISE) - LARGEST)
    return path.encode() + NOISE[begin : begin + seed % LARGEST]


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[Any]:
    """A server, as for the tests."""
    sys.path.append(str(HERE.parents[1] / "tests"))
    from weed import Weed

    folder.mkdir()
    server = Weed(folder)
    try:
        yield server
    finally:
        server.end()


def fill(server: Any, count: int) -> None:
    """Store the objects."""
    import obstore

    store = server.store()

    def put(k: int) -> None:
        obstore.put(store, f"photos/{path_of(k)}", content_of(path_of(k)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(count)))


def timed(what: str, command: list[Any], environment: dict[str, str]) -> None:
    """Run a command, and print how long it took."""
    begin = time.monotonic()
    subprocess.run([*map(str, command)], check=True, env=environment)
    print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file."""
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def compare(mounted: Path, count: int) -> None:
    """Compare all files of the mount with what was stored."""
    found = 0
    for folder, _, names in os.walk(mounted):
        for name in names:
            path = Path(folder, name)
            if path.read_bytes() != content_of(str(path.relative_to(mounted))):
                sys.exit(f"{path}: OTHER BYTES")
            found += 1
    if found != count:
        sys.exit(f"{mounted}: {found} FILES, NOT {count}")
    print(f"mount: {found} files, all as they were stored", flush=True)


def train(pack: Path, folder: Path, steps: int, environment: dict[str, str]) -> None:
    """Train with four ranks, stop after some steps, and go on with three. Each sample must come once in an epoch."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    one_thread = environment | {"OMP_NUM_THREADS": "1"}
    for ranks, most in ((4, steps), (3, 10**9)):
        command = [*run, f"--nproc-per-node={ranks}", HERE / "train.py", pack, folder, most]
        timed(f"training with {ranks} ranks", command, one_thread)


def main() -> None:
    """Do all of it."""
    python, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    with tempfile.TemporaryDirectory(prefix="fffs-cluster-") as name, seaweedfs(Path(name) / "store") as server:
        scratch, environment = Path(name), os.environ | server.environment
        print(f"storing {count} objects", flush=True)
        fill(server, count)
        for engine in ("dask", "ray"):
            command = [python, HERE, engine, f"s3://{server.bucket}/photos/", scratch / engine / "photos", PARTS]
            timed(engine, command, environment)
        if digests(scratch / "dask" / "photos") != digests(scratch / "ray" / "photos"):
            sys.exit("dask and ray: OTHER BYTES")
        print("dask and ray: the same bytes", flush=True)
        pack, mounted = scratch / "ray" / "photos", scratch / "mounted"
        mounted.mkdir()
        fffs = [sys.executable, "-m", "fffs"]
        subprocess.run([*fffs, "mount", str(pack), str(mounted)], check=True)
        try:
            compare(mounted, count)
        finally:
            subprocess.run([*fffs, "umount", str(mounted)], check=True)
        train(pack, scratch, max(count // 3000, 1), environment)


if __name__ == "__main__":
    main()
