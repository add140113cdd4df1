"""``formats``: Bags and TFRecord files, against FFRecord files and the libraries of these formats; scans."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import data
import page_cache
import tiny_rows
from figures import Figure, Report, best, progress
from peers import BATCH, SMALL_BATCH, GranularBag, Set

from fffs import FileReader
from fffs.files.local import LocalFile
from fffs.formats import frames, ofrecord, tfrecord
from fffs.granular import BagWriter

FRAME = 100_000  # bytes of data in each frame of the file that is scanned


def run(report: Report, scratch: Path, quick: bool) -> None:
    rounds = 5 if quick else 15
    large, small = data.large_records(scratch, 2_000 if quick else 10_000), data.small_records(scratch, 100_000)
    bag, frames_file = _as_bag(large), _as_frames(large)
    _batches_of_a_bag(report, bag, large, rounds)
    _batches_of_frames(report, Set("112 KiB", frames_file, BATCH, 32), bag, rounds)
    _batches_of_frames(report, Set("1 KiB", _as_frames(small), SMALL_BATCH, 32), _as_bag(small), rounds)
    tiny_rows.measure(report, scratch, rounds)
    for form in (frames.TFRECORD, frames.OFRECORD):
        _scan(report, scratch, form, 20_000 if quick else 100_000)


def _as_bag(records: Path) -> Path:
    with FileReader(records) as reader:
        return data.kept(records.with_suffix(".v1.bag"), lambda path: _write_bag(path, reader))


def _as_frames(records: Path) -> Path:
    with FileReader(records) as reader:
        return data.kept(records.with_suffix(".tfrecord"), lambda path: _write_frames(path, reader))


def _write_bag(path: Path, reader: FileReader) -> None:
    unfinished = path.with_name(f"{path.name}.bag")
    with BagWriter(unfinished) as writer:
        for i in range(reader.n):
            writer.append(reader.read_one(i).tobytes())
    unfinished.rename(path)


def _write_frames(path: Path, reader: FileReader) -> None:
    with tfrecord.TFRecordWriter(path) as writer:
        for i in range(reader.n):
            writer.write_one(reader.read_one(i))


# ---------------------------------------------------------------- batches


def _batches_of_a_bag(report: Report, bag: Path, records: Path, rounds: int) -> None:
    ours = Set("112 KiB", bag, BATCH, 32)
    with FileReader(records, check_data=False) as plain:
        _add(report, ours, "Bag, against our FFRecord, both unverified", plain.read, [records], rounds, 1.0)
    try:
        peer = GranularBag()
    except ImportError as error:
        report.skip("formats", f"granular is not installed ({error})")
        return
    # In layout v3, the only one that the current version reads.
    folder = data.kept(records.with_suffix(peer.suffix), lambda path: peer.write(path, ours.reader))
    theirs = Set("112 KiB", folder / "records.bag", BATCH, 32)
    _add(report, theirs, "Bag, against granular", peer.open(folder), [theirs.path], rounds, 2.0)


def _batches_of_frames(report: Report, ours: Set, bag: Path, rounds: int) -> None:
    """Compare verified random reads with sequential reads of other libraries; tfrecord can only read in sequence."""
    path = ours.path
    peers: list[tuple[str, Path, Callable[[], Callable[[], object]]]] = [
        ("tfrecord in sequence", path, lambda: _tfrecord(path)),
        ("bagz in sequence", bag, lambda: _bagz(bag)),
    ]
    for name, file, load in peers:
        try:
            run = load()
        except ImportError as error:
            report.skip("formats", f"{name.split()[0]} is not installed ({error})")
            continue
        page_cache.warm(path)
        page_cache.warm(file)
        progress(f"reading TFRecord, and {name}")
        records = ours.reader.n if ours.unit == "records/s" else file.stat().st_size / 1e6
        theirs = records / best(run, 3)
        mine = ours.amount / best(lambda: ours.take(ours.reader.read), rounds)
        progress("")
        what = f"{ours.what}, TFRecord at random, verified, against {name}"
        report.add(Figure("formats", what, mine, ours.unit, theirs, name, mine / theirs, 5.0))


def _tfrecord(path: Path) -> Callable[[], object]:
    from tfrecord.reader import tfrecord_iterator

    return lambda: sum(len(record) for record in tfrecord_iterator(str(path)))


def _bagz(path: Path) -> Callable[[], object]:
    import bagz

    return lambda: sum(len(record) for record in bagz.Reader(str(path)))


def _add(
    report: Report,
    ours: Set,
    what: str,
    theirs: Callable[[list[int]], object],
    files: list[Path],
    rounds: int,
    goal: float,
) -> None:
    progress(f"reading records of {ours.what}: {what}")
    rate, baseline, ratio = ours.against(theirs, files, ours.reader.read, rounds)
    progress("")
    report.add(Figure("formats", f"{ours.what}, {what}", rate, ours.unit, baseline, what, ratio, goal))


# ---------------------------------------------------------------- finding records


def _scan(report: Report, scratch: Path, form: frames.FrameFormat, count: int) -> None:
    """Measure the frames found per second. Their data is a hole in the file, which a scan does not read."""
    path = data.kept(scratch / f"frames-{count}.{form.name}", lambda path: _write_heads(path, form, count))
    with LocalFile.open(path) as file:
        frames.scan(file, form)
        time = best(lambda: frames.scan(file, form), 5)
    what = f"{form.name}, finding the records of {path.stat().st_size / 1e9:.1f} GB"
    report.add(Figure("formats", what, count / time, "frames/s", goal=200_000))


def _write_heads(path: Path, form: frames.FrameFormat, count: int) -> None:
    head = tfrecord.encode_head(FRAME) if form is frames.TFRECORD else ofrecord.HEAD.pack(FRAME)
    size = form.head + FRAME + form.tail
    with path.open("wb", buffering=0) as file:
        for k in range(count):
            os.pwrite(file.fileno(), head, k * size)
        file.truncate(count * size)
