"""``peers``: batches from the page cache, against other libraries that store records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import data
import numpy as np
import page_cache
from figures import Figure, Report, paired_ratio, progress, seconds

from fffs import FileReader

Read = Callable[[list[int]], object]


class Lmdb:
    """LMDB. Values are copied out of the mapping, as a batch must stay valid."""

    name, suffix = "LMDB", ".lmdb"

    def __init__(self) -> None:
        import lmdb

        self._lmdb = lmdb

    def write(self, path: Path, records: FileReader) -> None:
        size = 2 * Path(records.fnames[0]).stat().st_size
        with self._lmdb.open(str(path), subdir=False, lock=False, map_size=size) as env, env.begin(write=True) as txn:
            for i in range(records.n):
                txn.put(i.to_bytes(4, "big"), records.read_one(i).tobytes(), append=True)

    def open(self, path: Path) -> Read:
        transaction = self._lmdb.open(str(path), subdir=False, lock=False, readonly=True, readahead=False).begin()
        return lambda batch: [transaction.get(i.to_bytes(4, "big")) for i in batch]


class Bagz:
    name, suffix = "bagz", ".bag"

    def __init__(self) -> None:
        import bagz

        self._bagz = bagz

    def write(self, path: Path, records: FileReader) -> None:
        with self._bagz.Writer(str(path)) as writer:
            for i in range(records.n):
                writer.write(records.read_one(i).tobytes())

    def open(self, path: Path) -> Read:
        reader = self._bagz.Reader(str(path))
        return reader.read_indices


class ArrayRecord:
    name, suffix = "array_record", ".array_record"

    def __init__(self) -> None:
        from array_record.python import array_record_module

        self._module = array_record_module

    def write(self, path: Path, records: FileReader) -> None:
        writer = self._module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for i in range(records.n):
            writer.write(records.read_one(i).tobytes())
        writer.close()

    def open(self, path: Path) -> Read:
        reader = self._module.ArrayRecordReader(str(path), "readahead_buffer_size:0,index_storage_option:in_memory")
        return reader.read


class GranularBag:
    name, suffix = "granular", ".granular"

    def __init__(self) -> None:
        import granular

        self._granular = granular

    def write(self, path: Path, records: FileReader) -> None:
        path.mkdir()
        with self._granular.BagWriter(str(path / "records.bag")) as writer:
            for i in range(records.n):
                writer.append(records.read_one(i).tobytes())

    def open(self, path: Path) -> Read:
        reader = self._granular.BagReader(str(path / "records.bag"))
        return lambda batch: [reader[i] for i in batch]


class Ffrecord:
    name, suffix = "ffrecord", ".ffr"

    def __init__(self) -> None:
        import ffrecord

        self._ffrecord = ffrecord

    def write(self, path: Path, records: FileReader) -> None:
        shutil.copyfile(records.fnames[0], path)

    def open(self, path: Path) -> Read:
        reader = self._ffrecord.FileReader(str(path), check_data=True)
        return reader.read


PEERS = (Lmdb, Bagz, ArrayRecord, GranularBag, Ffrecord)
BATCH, SMALL_BATCH = 128, 1024
GOALS = {("LMDB", "112 KiB"): 0.95, ("ffrecord", "112 KiB"): 8.0}


class Set:
    """A record file and the batches that are read from it."""

    def __init__(self, what: str, path: Path, batch: int, batches: int) -> None:
        self.what, self.path = what, path
        self.reader = FileReader(path)
        self.numbers = np.random.default_rng(1).integers(0, self.reader.n, batch * batches)
        self.batches = [part.tolist() for part in np.split(self.numbers, batches)]
        self.unit = "MB/s" if batch < 1000 else "records/s"
        size = int(self.reader.lengths(self.numbers).sum())
        self.amount = size / 1e6 if batch < 1000 else len(self.numbers)

    def take(self, read: Read) -> float:
        """Read all batches. Returns seconds."""

        def run() -> None:
            for batch in self.batches:
                read(batch)

        return seconds(run)

    def against(self, peer: Read, paths: list[Path], ours: Read, rounds: int) -> tuple[float, float, float]:
        """Return the best rates of fffs and of the peer, and the median ratio of pairs."""
        mine, theirs = [], []
        for path in [self.path, *paths]:
            page_cache.warm(path)
        self.take(peer)
        self.take(ours)
        while len(mine) < rounds:
            before = page_cache.bytes_from_disk()
            mine.append(self.take(ours))
            theirs.append(self.take(peer))
            if page_cache.bytes_from_disk() != before:
                for path in [self.path, *paths]:
                    page_cache.warm(path)
        return self.amount / min(mine), self.amount / min(theirs), paired_ratio(theirs, mine)


def run(report: Report, scratch: Path, quick: bool) -> None:
    rounds = 5 if quick else 15
    sets = [
        Set("112 KiB", data.large_records(scratch, 2_000 if quick else 10_000), BATCH, 32),
        Set("1 KiB", data.small_records(scratch, 100_000), SMALL_BATCH, 100),
    ]
    for records in sets:
        for kind in PEERS:
            try:
                peer = kind()
            except ImportError as error:
                report.skip("peers", f"{kind.name} is not installed ({error})")
                continue
            _compare(report, records, peer, rounds)
        _compare_forms(report, records, rounds)
        records.reader.close()


def _compare(
    report: Report, records: Set, peer: Lmdb | Bagz | ArrayRecord | GranularBag | Ffrecord, rounds: int
) -> None:
    target = records.path.with_suffix(peer.suffix)
    if peer.suffix == ".ffr":
        target = records.path
    else:
        data.kept(target, lambda path: peer.write(path, records.reader))
    progress(f"reading records of {records.what} through {peer.name}")
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    ours, theirs, ratio = records.against(peer.open(target), files, records.reader.read, rounds)
    progress("")
    goal = GOALS.get((peer.name, records.what))
    report.add(
        Figure("peers", f"{records.what}, against {peer.name}", ours, records.unit, theirs, peer.name, ratio, goal)
    )


def _compare_forms(report: Report, records: Set, rounds: int) -> None:
    """Compare the other forms of a batch with the list."""
    reader = records.reader
    out = np.empty(max(int(reader.lengths(batch).sum()) for batch in records.batches), np.uint8)
    forms: list[tuple[str, Read]] = [
        ("read_joined", reader.read_joined),
        ("read_into", lambda batch: reader.read_into(batch, out)),
    ]
    for name, form in forms:
        rate, list_rate, ratio = records.against(reader.read, [], form, rounds)
        goal = 2e6 if records.unit == "records/s" else None
        report.add(
            Figure("forms", f"{records.what}, {name}, against read", rate, records.unit, list_rate, "read", ratio)
        )
        if goal:
            report.add(Figure("forms", f"{records.what}, {name}", rate, records.unit, goal=goal))
