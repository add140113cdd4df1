"""Records in Dask and Ray: every file once, verified, from the source that was divided."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from inside import identity, part_names, record_parts, slices

import fffs.dask
from fffs import tfrecord
from fffs.errors import ChecksumError, SourceChangedError, UnsupportedError, UsageError

COUNT = 200


def content(k: int) -> bytes:
    return random.Random(k).randbytes(k * 37 % 3000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "photos"
    (folder / "a" / "b").mkdir(parents=True)
    for k in range(COUNT):
        (folder / ("a" if k % 2 else "a/b") / f"{k}.jpg").write_bytes(content(k))
    os.link(folder / "a" / "1.jpg", folder / "again.jpg")
    (folder / "link").symlink_to("a/3.jpg")
    return folder


@pytest.fixture(scope="module")
def pack(folder: Path) -> Path:
    path = folder.parent / "photos.ffr"
    fffs.pack_folder(folder, path)
    return path


@pytest.fixture(scope="module")
def messages(folder: Path) -> Path:
    path = folder.parent / "m.tfrecord"
    with tfrecord.TFRecordWriter(path) as writer:
        for k in range(COUNT):
            writer.write_one(tfrecord.encode({"number": [k], "data": [content(k)]}))
    return path


def right(folder: Path, rows: list[tuple[str, bytes]]) -> bool:
    """Return whether these are all files of the folder, each once."""
    files = {os.stat(folder / path).st_ino for path, _ in rows}
    return len(files) == len(rows) == COUNT and all((folder / path).read_bytes() == data for path, data in rows)


# ---------------------------------------------------------------- slices


def test_slices_have_every_file_once(pack: Path) -> None:
    for count in (1, 2, 7, COUNT, 1000):
        parts = slices.slices_of(pack, count=count)
        assert len(parts) == min(count, COUNT)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == COUNT
        assert min(map(len, parts)) > 0
    few = slices.slices_of(pack, count=4)
    assert max(part.size for part in few) - min(part.size for part in few) <= 6000
    assert [len(part.read().paths) for part in few] == [len(part) for part in few]


def test_cuts_of_very_large_sources() -> None:
    """The product of 100 TB and the number of slices is no integer of 64 bits."""
    ends = np.arange(1, 1_000_001) * 10**8
    assert {end - begin for begin, end in slices._cuts(ends, 500_000)} == {2}


def test_cuts_of_any_sizes() -> None:
    numbers = random.Random(1)
    for _ in range(300):
        sizes = [numbers.choice([0, 1, 10, 10_000]) for _ in range(numbers.randrange(1, 30))]
        count = numbers.randrange(1, 40)
        cuts = slices._cuts(np.cumsum(sizes), count)
        assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
        assert cuts[-1][1] == len(sizes)
        assert all(start < stop for start, stop in cuts)
        assert len(cuts) == min(count, len(sizes))


def test_a_slice_is_divided(pack: Path) -> None:
    for part in slices.slices_of(pack, count=2):
        smaller = part.divided(slice_bytes=20_000)
        assert len(smaller) > 3
        assert sum(some.size for some in smaller) == part.size
        together = [path for some in smaller for path in some.read().paths]
        assert together == part.read().paths


def test_a_source_that_was_replaced_is_refused(pack: Path, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.ffr"
    path.write_bytes(pack.read_bytes())
    [part] = slices.slices_of(path, count=1)
    assert len(pickle.loads(pickle.dumps(part)).read().paths) == COUNT
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_bytes(b"x")
    fffs.pack_folder(tmp_path / "new", path)
    with pytest.raises(SourceChangedError):
        part.read()


@pytest.mark.parametrize("arguments", [{"count": 0}, {"slice_bytes": -1}])
def test_impossible_numbers(pack: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        slices.slices_of(pack, **arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------- Dask


def test_a_bag_of_files(pack: Path, folder: Path) -> None:
    bag = fffs.dask.read(pack, npartitions=5)
    assert bag.npartitions == 5
    with dask.config.set(scheduler="threads"):
        assert right(folder, bag.compute())
        assert bag.map(lambda row: len(row[1])).sum().compute() == sum(len(content(k)) for k in range(COUNT))
        assert right(folder, fffs.dask.read(pack, partition_bytes=50_000).compute())


def test_a_bag_of_messages(messages: Path) -> None:
    bag = fffs.dask.read(messages, decode=tfrecord.decode, npartitions=3)
    with dask.config.set(scheduler="synchronous"):
        found = bag.compute()
    assert [int(row["number"][0]) for row in found] == list(range(COUNT))
    assert [row["data"][0] for row in found] == [content(k) for k in range(COUNT)]


def test_a_bag_without_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    fffs.pack_folder(tmp_path / "empty", tmp_path / "p.ffr")
    assert fffs.dask.read(tmp_path / "p.ffr").compute(scheduler="synchronous") == []


def test_damage_is_an_error_of_its_partition(pack: Path, tmp_path: Path) -> None:
    data = bytearray(pack.read_bytes())
    with fffs.FileReader(pack) as reader:
        data[reader.get_offsets()[COUNT // 2] + 5] ^= 1
    (tmp_path / "p.ffr").write_bytes(data)
    bag = fffs.dask.read(tmp_path / "p.ffr", npartitions=10)
    failed = 0
    for partition in bag.to_delayed():
        try:
            partition.compute(scheduler="synchronous")
        except ChecksumError:
            failed += 1
    assert failed == 1


CLUSTER = """
import sys
from distributed import Client, LocalCluster
import fffs.dask

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster) as client:
        bag = fffs.dask.read(sys.argv[1], npartitions=6)
        print(len(client.scheduler_info()["workers"]), bag.count().compute())
        print(bag.map(lambda row: len(row[1])).sum().compute())
"""


def test_processes_of_a_cluster(pack: Path, tmp_path: Path) -> None:
    """In a program of its own: the package changes how exceptions are pickled."""
    (tmp_path / "program.py").write_text(CLUSTER)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", pack], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", str(COUNT), str(sum(len(content(k)) for k in range(COUNT)))]


def records_of(folder: Path) -> list[bytes]:
    with fffs.FileReader(folder) as reader:
        return [bytes(record) for record in reader.read(range(reader.n))]


def test_a_bag_becomes_records(tmp_path: Path) -> None:
    items = [content(k) for k in range(COUNT)]
    bag = dask.bag.from_sequence(items, npartitions=8).filter(lambda item: len(item) % 10)
    kept = [item for item in items if len(item) % 10]
    target = tmp_path / "new" / "records"
    assert fffs.dask.write_records(bag, target, scheduler="threads") == len(kept)
    assert sorted(os.listdir(target)) == [f"records-{k:05}-of-00008.ffr" for k in range(8)]
    assert records_of(target) == kept
    assert os.listdir(target.parent) == ["records"]
    with pytest.raises(UsageError):
        fffs.dask.write_records(bag, target)


def test_names_of_very_many_parts_are_sorted_as_they_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As more than 100,000."""
    monkeypatch.setattr(part_names, "PART_DIGITS", 1)
    with record_parts.RecordParts.begin(str(tmp_path / "set")) as parts:
        parts.commit([parts.write(k, [b"%d" % k]) for k in range(12)])
    assert sorted(os.listdir(tmp_path / "set")) == [f"set-{k:02}-of-00012.ffr" for k in range(12)]


def test_partitions_without_items_have_no_part(tmp_path: Path) -> None:
    bag = dask.bag.from_sequence(range(6), npartitions=3).filter(lambda k: not 2 <= k < 4).map(lambda k: bytes([k]))
    assert fffs.dask.write_records(bag, tmp_path / "r", scheduler="synchronous") == 4
    assert records_of(tmp_path / "r") == [b"\0", b"\1", b"\4", b"\5"]
    assert len(os.listdir(tmp_path / "r")) == 2
    with pytest.raises(UsageError, match="no records"):
        fffs.dask.write_records(bag.filter(lambda item: False), tmp_path / "none", scheduler="synchronous")
    assert os.listdir(tmp_path) == ["r"]


def test_a_partition_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(k: int) -> bytes:
        if k == 5:
            raise ValueError("item 5")
        return b"x"

    with pytest.raises(ValueError, match="item 5"):
        fffs.dask.write_records(dask.bag.range(9, npartitions=3).map(fail), tmp_path / "r", scheduler="synchronous")
    assert os.listdir(tmp_path) == []


def test_a_bag_becomes_packs(pack: Path, tmp_path: Path) -> None:
    bag = fffs.dask.read(pack, npartitions=3).map(lambda row: (row[0], row[1][::-1]))
    large = ("large/x", np.arange(300_000))
    bag = dask.bag.concat([bag, dask.bag.from_sequence([large, (b"\xff", b"")], npartitions=1)])
    assert fffs.dask.write_packed(bag, tmp_path / "set", scheduler="threads") == COUNT + 2
    assert sorted(os.listdir(tmp_path / "set")) == [f"set-0000{k}-of-00004.ffr" for k in range(4)]
    with fffs.PackedFolder(tmp_path / "set") as written, fffs.PackedFolder(pack) as read:
        assert written.num_files() == COUNT + 2
        assert all(
            bytes(written.read_one(path)) == bytes(read.read_one(path))[::-1] for path in ("a/5.jpg", "a/b/8.jpg")
        )
        assert bytes(written.read_one("large/x")) == large[1].tobytes()
        assert written.is_file(b"\xff")
    assert not list(tmp_path.glob(".*"))


BAD_ROWS = {
    "is not the path of a file": [("", b""), ("/a", b""), ("a/", b""), ("../a", b""), ("a/./b", b""), ("a\0b", b"")],
    "must be .path, bytes.": [(1, b""), (None, b""), ("a", b"", 1), 7, b"abc"],  # type: ignore[list-item]
    "half of a pair of surrogates": [("\ud800", b"")],
    "two rows have this path": [("b", b"2")],
    "the content cannot be written": [("a", 7), ("a", "text"), ("a", np.zeros((3, 3))[:, 1])],
    "an array of objects": [("a", np.array(["b"], object))],
    "a name of more than 255 bytes": [("x" * 300, b"")],
    "cannot be packed: .*b": [("b/c", b"in a folder with the name of a file")],
}


@pytest.mark.parametrize(("message", "rows"), BAD_ROWS.items(), ids=range(len(BAD_ROWS)))
def test_rows_that_are_no_files(message: str, rows: list[Any], tmp_path: Path) -> None:
    for row in rows:
        bag = dask.bag.from_sequence([("b", b"1"), row], npartitions=1)
        with pytest.raises((UsageError, UnsupportedError), match=message):
            fffs.dask.write_packed(bag, tmp_path / "set", scheduler="synchronous")
    assert os.listdir(tmp_path) == []


def test_slices_of_many_files_are_small_and_refuse_a_change_of_any_file(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for k in range(60):
        with fffs.FileWriter(tmp_path / f"set/p-{k:05}-of-00060.ffr") as writer:
            writer.write_one(b"%02d" % k)
    parts = slices.slices_of(tmp_path / "set", count=60)
    assert len(pickle.dumps(parts[0])) < 600
    assert parts[7].read().buffer.tobytes() == b"07"
    for content in (b"xx", b"longer"):
        with fffs.FileWriter(tmp_path / "set/p-00059-of-00060.ffr") as writer:
            writer.write_one(content)
        with pytest.raises(SourceChangedError, match="set: not the same file or files any more"):
            parts[7].read()


@pytest.mark.parametrize("change", ["size", "framing", "check", "checksums", "mtime"])
def test_what_identifies_many_files_together(change: str) -> None:
    one = identity.Identity(100, 7, 1, 9, ("boot", 3), 5)
    none = one._replace(check=0, checksums=0)
    for files in ([one, one, one], [none, none, one], [none] * 3):
        other = [*files[:1], files[1]._replace(**{change: getattr(files[1], change) + 1}), *files[2:]]
        assert identity.joined(files).is_that_of(identity.joined(list(files)))
        if not all(a.is_that_of(b) for a, b in zip(files, other, strict=True)):
            assert not identity.joined(files).is_that_of(identity.joined(other))
    moved = [file._replace(place=("boot", 4), mtime=6) for file in (none, none)]
    assert identity.joined([none, none]).is_that_of(identity.joined(moved))


def test_a_path_in_two_partitions(tmp_path: Path) -> None:
    for other in ("a", "a/b"):
        bag = dask.bag.from_sequence([("a", b"1"), ("c", b"2"), (other, b"3")], npartitions=3)
        with pytest.raises(UsageError, match="1 row with a path that is in another partition, too"):
            fffs.dask.write_packed(bag, tmp_path / "set", scheduler="synchronous")
    assert os.listdir(tmp_path) == []


def test_more_partitions_than_files_that_may_be_open(tmp_path: Path) -> None:
    room = len(os.listdir("/proc/self/fd")) + 90
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    bag = dask.bag.from_sequence([(f"a/{k}", b"%d" % k) for k in range(100)], npartitions=100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, limits[1]))
    try:
        assert fffs.dask.write_packed(bag, tmp_path / "set", scheduler="synchronous") == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(os.listdir(tmp_path / "set")) == 100


def test_a_part_that_is_written_twice_counts_once(tmp_path: Path) -> None:
    with record_parts.RecordParts.begin(tmp_path / "r") as parts:
        again = pickle.loads(pickle.dumps(parts))
        again.write(0, [b"a"])  # its worker died before the engine had the result
        written = [parts.write(1, [b"c"]), parts.write(0, [b"a", b"b"])]
        assert parts.commit(written) == 3
    assert records_of(tmp_path / "r") == [b"a", b"b", b"c"]
    assert len(os.listdir(tmp_path / "r")) == 2
    with pytest.raises(UsageError, match="not there any more"):
        again.write(2, [b"late"])


# ---------------------------------------------------------------- Ray


RAY = """
import json, pathlib, sys, warnings
import documented, numpy, ray
import fffs.ray
from fffs import tfrecord

pack, damaged, messages, target = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own settings
    ray.data.DataContext.get_current().enable_progress_bars = False
found = fffs.ray.read(pack, override_num_blocks=4)
found_first = found.take(1)[0]["path"]
decoded = fffs.ray.read(messages, decode=tfrecord.decode)
examples = pathlib.Path(target + "-examples")
examples.mkdir()
errors = []
numbers = found.map(lambda row: {"bytes": 1})
for work in (
    lambda: fffs.ray.read(damaged).take_all(),
    lambda: fffs.ray.write_records(found, target + "2", "data"),
    lambda: fffs.ray.write_records(numbers, target + "2"),
):
    try:
        work()
    except ray.exceptions.RayTaskError as error:
        errors.append(str(error))
skipping = fffs.ray.read(pack)
skipping.context.max_errored_blocks = -1
try:
    fffs.ray.write_records(skipping, target + "2")
except fffs.errors.UsageError as error:
    errors.append(str(error))
print(json.dumps({
    "count": found.count(),
    "rows": [[row["path"], row["bytes"].hex()] for row in found.take_all()],
    "messages": [[row["number"][0], row["data"][0].hex()] for row in decoded.take_all()],
    "written": fffs.ray.write_records(found, target),
    "packed": fffs.ray.write_packed(fffs.ray.read(pack), target + "-packed"),
    # All blocks but one are empty then, and have no columns.
    "filtered": fffs.ray.write_records(found.filter(lambda row: row["path"] == found_first), target + "_one"),
    "arrays": fffs.ray.write_records(
        found.map(lambda row: {"bytes": numpy.frombuffer(row["bytes"], numpy.uint8)}), target + "_arrays"
    ),
    "errors": errors,
    "examples": documented.run_docstrings("fffs.ray", examples),
}))
ray.shutdown()
"""


def test_data_sets_of_ray(pack: Path, folder: Path, messages: Path, tmp_path: Path) -> None:
    """In a program of its own: Ray changes the handling of signals, and leaves descriptors open for a while."""
    damaged, data = tmp_path / "damaged.ffr", bytearray(pack.read_bytes())
    with fffs.FileReader(pack) as reader:
        data[reader.get_offsets()[COUNT // 2] + 5] ^= 1
    damaged.write_bytes(data)
    (tmp_path / "program.py").write_text(RAY)
    command = [sys.executable, tmp_path / "program.py", pack, damaged, messages, tmp_path / "r"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["count"] == found["written"] == found["arrays"] == COUNT
    assert found["filtered"] == 1
    assert right(folder, [(path, bytes.fromhex(data)) for path, data in found["rows"]])
    assert sorted(found["messages"]) == [[k, content(k).hex()] for k in range(COUNT)]
    assert "ChecksumError" in found["errors"][0]
    assert "no column 'data', but path, bytes" in found["errors"][1]
    assert "'bytes' has int64, but records are bytes, text or arrays" in found["errors"][2]
    assert "Ray would leave out rows without an error" in found["errors"][3]
    for name in ("r", "r_arrays"):
        assert sorted(records_of(tmp_path / name)) == sorted(content(k) for k in range(COUNT))
    assert found["packed"] == COUNT
    assert found["examples"] > 3
    with fffs.PackedFolder(tmp_path / "r-packed") as packed:
        rows = [(path, bytes(packed.read_one(path))) for path, _ in found["rows"]]
    assert right(folder, rows)
    assert sorted(os.listdir(tmp_path)) == [
        "damaged.ffr",
        "program.py",
        "r",
        "r-examples",
        "r-packed",
        "r_arrays",
        "r_one",
    ]


def test_a_table_is_the_memory_of_its_batch(pack: Path) -> None:
    from inside import engine_tables

    [part] = slices.slices_of(pack, count=1)
    batch = part.read()
    table = engine_tables.table_of(batch)
    [column] = table.column("bytes").chunks
    assert column.buffers()[2].address == batch.buffer.ctypes.data
    assert table.column("path").to_pylist() == batch.paths
    table.validate(full=True)


def test_decode_must_return_columns(messages: Path) -> None:
    from inside import engine_tables

    [part] = slices.slices_of(messages, count=1)
    with pytest.raises(UsageError, match="must return a dictionary"):
        engine_tables.table_of(part.read(), len)


@pytest.mark.parametrize(("name", "package"), [("dask", "dask"), ("ray", "ray")])
def test_what_to_install(name: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import fffs.{name}; fffs.{name}.read('x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"pip install 'fffs[{name}]'" in done.stderr.splitlines()[-1]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    from inside import engine_tables

    os.mkdir(tmp_path / "odd")
    with open(os.fsencode(tmp_path) + b"/odd/\xff.txt", "wb") as file:
        file.write(b"x")
    fffs.pack_folder(tmp_path / "odd", tmp_path / "p.ffr")
    [part] = slices.slices_of(tmp_path / "p.ffr")
    rows: Any = engine_tables.table_of(part.read()).to_pylist()
    assert rows == [{"path": "\\xff.txt", "bytes": b"x"}]
