"""``objects``: records of objects over HTTPS, with and without latency, against libcurl alone and other libraries."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import data
import numpy as np
import object_mounts
import object_servers as servers
import page_cache
from figures import Figure, Report, progress, seconds

import fffs
from fffs import FileReader
from fffs.objects import transfer

BATCH, LARGE_BATCH = 128, 1024
DELAY = 20  # milliseconds
LINK = 125_000_000  # bytes a second of a connection of 1 Gbit/s
NEAR, FAR = 16, 256  # connections that libcurl alone gets
WORKERS = 2

Fetch = Callable[[list[np.ndarray]], float]


def run(report: Report, scratch: Path, quick: bool) -> None:
    photos = data.large_records(scratch, 2_000 if quick else 10_000)
    small = data.equal_records(scratch, 100_000, 1024)
    for program in ("nginx", "openssl"):
        if not shutil.which(program):
            report.skip("objects", f"needs {program} (Debian: nginx-light, openssl)")
            return
    with _folder(scratch, photos, small) as root, servers.nginx(root, scratch / "nginx") as (port, certificate):
        os.environ |= {"AWS_CA_BUNDLE": str(certificate), "FFFS_CACHE": "off", "FFFS_CONNECTIONS": str(FAR)}
        url = f"https://127.0.0.1:{port}"
        rounds = 3 if quick else 7
        _near(report, scratch, f"{url}/photos/records", photos, (BATCH, "128 x 112 KB"), certificate, rounds)
        _near(report, scratch, f"{url}/small/records", small, (LARGE_BATCH, "1,024 x 1 KiB"), certificate, rounds)
        _cached(report, f"{url}/photos/records", photos, rounds)
        with servers.delayed(port, DELAY, scratch) as late_port:
            late = f"https://127.0.0.1:{late_port}"
            _late(report, scratch, f"{late}/small/records", small, certificate, rounds)
            _training(report, scratch, late, photos, certificate, 1 if quick else 3, "no limit")
        with servers.delayed(port, DELAY, scratch, LINK) as late_port:
            late = f"https://127.0.0.1:{late_port}"
            _training(report, scratch, late, photos, certificate, 1 if quick else 3, "1 Gbit/s")
        _opening(report, scratch, url, root, quick)
    object_mounts.run(report, scratch, DELAY, quick)


@contextlib.contextmanager
def _folder(scratch: Path, photos: Path, small: Path) -> Iterator[Path]:
    """A folder with the files as objects of buckets."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        root = Path(name)
        root.chmod(0o755)
        for bucket, path in (("photos", photos), ("small", small)):
            (root / bucket).mkdir()
            os.link(path, root / bucket / "records")
            page_cache.warm(path)
        yield root


# ---------------------------------------------------------------- programs


def _ours(url: str) -> tuple[FileReader, Fetch]:
    reader = fffs.FileReader(url)

    def fetch(batches: list[np.ndarray]) -> float:
        reader.read(batches[0].tolist())  # for the connections
        return _read_all(reader, [batch.tolist() for batch in batches])

    return reader, fetch


class _Curl:
    """libcurl alone: no checksums, no comparison of versions, no retries."""

    def __init__(self, scratch: Path, url: str, index: FileReader, connections: int, certificate: Path) -> None:
        self._program = servers.compiled("ranges", scratch, "-l:libcurl.so.4")
        self._url, self._index, self._connections, self._certificate = url, index, connections, certificate

    def __call__(self, batches: list[np.ndarray]) -> float:
        offsets = self._index.get_offsets()
        chosen = np.concatenate(batches)
        pairs = np.stack([offsets[chosen], np.diff(offsets)[chosen]], 1).astype(np.int64)
        command = [self._program, self._url, str(self._connections), str(len(batches[0])), str(self._certificate)]
        return float(subprocess.run(command, input=pairs.tobytes(), capture_output=True, check=True).stdout)


def _obstore(url: str, index: FileReader) -> Fetch:
    from obstore.store import HTTPStore

    address, _, path = url.rpartition("/")
    store: Any = HTTPStore.from_url(address, client_options={"allow_invalid_certificates": True})
    import obstore

    offsets = index.get_offsets()

    def fetch(batches: list[np.ndarray]) -> float:
        def all_of(batch: np.ndarray) -> Any:
            return obstore.get_ranges(
                store, path, starts=offsets[batch].tolist(), ends=offsets[batch + 1].tolist(), coalesce=0
            )

        all_of(batches[0])
        return _all(all_of, batches)

    return fetch


def _s3fs(url: str, index: FileReader, certificate: Path) -> Fetch:
    import s3fs

    endpoint, bucket, key = url.rsplit("/", 2)
    system: Any = s3fs.S3FileSystem(anon=True, endpoint_url=endpoint, client_kwargs={"verify": str(certificate)})
    offsets = index.get_offsets()

    def fetch(batches: list[np.ndarray]) -> float:
        def all_of(batch: np.ndarray) -> None:
            paths = [f"{bucket}/{key}"] * len(batch)
            found = system.cat_ranges(paths, offsets[batch].tolist(), offsets[batch + 1].tolist(), max_gap=None)
            assert all(isinstance(record, bytes) for record in found)

        all_of(batches[0])
        return _all(all_of, batches)

    return fetch


# ---------------------------------------------------------------- batches


def _batches(count: int, size: int, number: int, seed: int) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(count)
    return [order[k * size : (k + 1) * size] for k in range(min(number, count // size))]


def _near(
    report: Report, scratch: Path, url: str, path: Path, shape: tuple[int, str], certificate: Path, rounds: int
) -> None:
    size, what = shape
    reader, ours = _ours(url)
    with reader, FileReader(path) as index:
        others: dict[str, tuple[Fetch, float]] = {}
        curl = _Curl(scratch, url, index, NEAR, certificate)
        others["libcurl alone"] = curl, 0.95
        for name, goal, make in (
            ("obstore", 1.7, lambda: _obstore(url, index)),
            ("s3fs", 6.0, lambda: _s3fs(url, index, certificate)),
        ):
            try:
                others[name] = make(), goal
            except ImportError:
                report.skip(f"{what} against {name}", f"needs {name}: pip install {name}")
        number, fastest = min(index.n // size, 30 if size == BATCH else 20), 0.0
        for name, (fetch, goal) in others.items():
            slow = name == "s3fs"
            batches = [_batches(index.n, size, 4 if slow else number, k) for k in range(1 if slow else rounds)]
            progress(f"objects: {what} against {name}")
            page_cache.warm(path)
            pairs = [(ours(some), fetch(some)) for some in batches]
            progress("")
            ratio = statistics.median(theirs / mine for mine, theirs in pairs)
            best = max(size * len(some) / mine for some, (mine, _) in zip(batches, pairs, strict=True))
            fastest = max(fastest, best)
            goal_of = goal if size == BATCH else None
            report.add(Figure("objects", f"{what} over HTTPS", best, "records/s", best / ratio, name, ratio, goal_of))
        if size == LARGE_BATCH:
            report.add(Figure("objects", f"{what} over HTTPS", fastest, "records/s", goal=30_000))
        else:
            _overhead(report, reader, index, size)


def _overhead(report: Report, reader: FileReader, index: FileReader, size: int) -> None:
    """How many bytes are fetched for those that are asked for."""
    before = _state(reader)
    batches = _batches(index.n, size, 20, 99)
    for batch in batches:
        reader.read(batch.tolist())
    asked = int(index.lengths(np.concatenate(batches)).sum())
    ratio = (_state(reader).fetched - before.fetched) / asked
    report.add(Figure("objects", "bytes fetched for each byte asked for", ratio, "", goal=1.15, at_most=True))


def _state(reader: FileReader) -> transfer.State:
    """Return what is known of the one object of a reader."""
    [file] = reader.store.files
    return transfer.state_of(int(transfer.numbers_of(np.array([file.file.descriptor], np.int32))[0]))


def _late(report: Report, scratch: Path, url: str, path: Path, certificate: Path, rounds: int) -> None:
    what = f"1,024 x 1 KiB, {DELAY} ms latency"
    reader, ours = _ours(url)
    with reader, FileReader(path) as index:
        curl = _Curl(scratch, url, index, FAR, certificate)
        ratios, best = [], 1e9
        for k in range(rounds):
            progress(f"objects: {what}: round {k + 1} of {rounds}")
            batches = _batches(index.n, LARGE_BATCH, 8, k)
            mine, theirs = ours(batches), curl(batches)
            ratios.append(mine / theirs)
            best = min(best, mine / len(batches))
        progress("")
        ratio = statistics.median(ratios)
        report.add(Figure("objects", what, best * 1e3, "ms", best / ratio * 1e3, "libcurl, 256", ratio, 1.3, True))
        report.add(Figure("objects", what, best * 1e3, "ms", goal=270, at_most=True))


def _cached(report: Report, url: str, path: Path, rounds: int) -> None:
    """Batches from a warm cache, against the local file."""
    with _cache(), fffs.FileReader(url) as reader, FileReader(path) as local:
        reader.store.use_caches()
        everything = np.arange(local.n)
        for k in range(0, local.n, 1024):
            reader.read(everything[k : k + 1024].tolist())
        ratios, best = [], 0.0
        for k in range(rounds):
            page_cache.warm(path)
            batches = [batch.tolist() for batch in _batches(local.n, BATCH, 1 << 30, k)]
            for batch in batches:  # the cache's pages
                reader.read(batch)
            pair = [_read_all(each, batches) for each in (local, reader)]
            ratios.append(pair[0] / pair[1])
            best = max(best, BATCH * len(batches) / pair[1])
        ratio = statistics.median(ratios)
        what = "128 x 112 KB from a warm cache"
        report.add(Figure("objects", what, best, "records/s", best / ratio, "local file", ratio, 0.95))


def _read_all(reader: FileReader, batches: list[list[int]]) -> float:
    """Return how long reading batches takes. Each is dropped before the next, as in a training loop."""
    return _all(reader.read, batches)


def _all(read: Callable[[Any], object], batches: Sequence[Any]) -> float:
    def run() -> None:
        for batch in batches:
            read(batch)

    return seconds(run)


@contextlib.contextmanager
def _cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ["FFFS_CACHE"]
        os.environ["FFFS_CACHE"] = folder
        try:
            yield
        finally:
            os.environ["FFFS_CACHE"] = before


# ---------------------------------------------------------------- training, opening


def _training(report: Report, scratch: Path, url: str, path: Path, certificate: Path, rounds: int, link: str) -> None:
    """An epoch of a loader: the first through the network with latency, the second from the cache.

    Without a limit of the connection, the processors are the limit: the server, the proxy and the client share them.
    """
    import fffs.torch

    def epoch(source: str) -> tuple[list[float], int]:
        dataset = fffs.torch.Dataset(source)
        loader: Any = fffs.torch.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
        return [seconds(lambda: [len(batch) for batch in loader]) for _ in range(2)], len(dataset)

    first, second, best = [], [], [0.0, 0.0]
    for k in range(rounds):
        progress(f"objects: training, {link}: round {k + 1} of {rounds}")
        with FileReader(path) as index, _cache():
            page_cache.warm(path)
            curl = _Curl(scratch, f"{url}/photos/records", index, FAR, certificate)
            batches = _batches(index.n, LARGE_BATCH, 1 << 30, k)
            theirs = curl(batches) / (len(batches) * LARGE_BATCH) * index.n
            (one, two), count = epoch(f"{url}/photos/records")
            page_cache.warm(path)
            (_, local), _ = epoch(str(path))
        first.append(theirs / one)
        second.append(local / two)
        best = [max(best[0], count / one), max(best[1], count / two)]
    progress("")
    ratio = statistics.median(first)
    what = f"epoch 1, {WORKERS} workers, {DELAY} ms latency, {link}"
    report.add(Figure("objects", what, best[0], "records/s", best[0] / ratio, "libcurl, 256", ratio, 0.9))
    ratio = statistics.median(second)
    what = f"epoch 2, {WORKERS} workers, from the cache, {link}"
    report.add(Figure("objects", what, best[1], "records/s", best[1] / ratio, "local file", ratio, 0.95))


def _opening(report: Report, scratch: Path, url: str, root: Path, quick: bool) -> None:
    count = 100_000 if quick else 1_000_000
    pack = data.packed_folder(scratch, count, with_trailer=True)
    os.link(pack, root / "photos" / "pack")
    before = transfer.totals().requests
    fffs.PackedFolder(f"{url}/photos/pack").close()
    requests = transfer.totals().requests - before
    report.add(Figure("objects", f"opening a pack of {count:,} files", requests, "requests", goal=4, at_most=True))
