"""Code written for granular 0.24 runs unchanged after install_as_granular(), and its files go on where it stopped."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from granular_golden import FOLDER as GOLDEN
from inside import exact_codecs, granular_readers, resuming_writers, sample_sources, sync

import fffs
from fffs.errors import MetadataError, UsageError, WriterError

BagReader, BagWriter = granular_readers.StoredBagReader, resuming_writers.ResumingBagWriter
DatasetReader, DatasetWriter = granular_readers.StoredDatasetReader, resuming_writers.ResumingDatasetWriter
ShardedReader, ShardedWriter = granular_readers.StoredShardedReader, resuming_writers.ResumingShardedWriter
SPEC = {"b": "utf8", "a": "int"}
ENCODERS, DECODERS = exact_codecs.encoders, exact_codecs.decoders


def rows(first: int, stop: int) -> list[dict[str, Any]]:
    return [{"a": k, "b": f"text {k}"} for k in range(first, stop)]


def write(folder: Path, points: list[dict[str, Any]]) -> None:
    with DatasetWriter(folder, SPEC, ENCODERS) as writer:
        for point in points:
            writer.append(point)


def table(path: Path) -> tuple[int, ...]:
    data = path.read_bytes()
    return struct.unpack(f"<{len(data) // 8}Q", data)


# ---------------------------------------------------------------- the names

PROGRAM = """
import multiprocessing, pickle, sys
import fffs
fffs.install_as_granular()
fffs.install_as_granular()

import granular
import granular.bag, granular.dataset, granular.sharded, granular.formats
from granular import BagReader, BagWriter, DatasetReader, DatasetWriter, ShardedDatasetReader, ShardedDatasetWriter
from granular import decoders, encoders, sources
from granular.bag import SharedBuffer


def child(buffer, path):
    import granular
    assert granular.BagReader.__module__.startswith("fffs."), granular.BagReader
    with granular.BagReader(buffer, path.replace(".bag", ".idx")) as reader:
        sys.exit(len(reader))


if __name__ == "__main__":
    import importlib.util
    assert importlib.util.find_spec("granular").name == "granular"
    assert granular.bag.BagWriter is BagWriter and granular.formats.encoders is encoders
    assert "ffrecord" not in sys.modules and not hasattr(granular, "Loader")
    path = sys.argv[1]
    with BagWriter(path) as writer:
        for k in range(5):
            assert writer.append(bytes([k])) == k
    buffer = SharedBuffer(open(path, "rb").read())
    process = multiprocessing.get_context("spawn").Process(target=child, args=(buffer, path))
    process.start()
    process.join()
    assert process.exitcode == 5, process.exitcode
    with BagReader(path) as reader:
        assert sources.Epochs(reader, shuffle=False)(7) == bytes([2])
"""


def test_code_written_for_granular_finds_what_it_imports_also_in_spawned_processes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    result = subprocess.run([sys.executable, program, tmp_path / "a.bag"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not [path for path in Path("/dev/shm").glob("fffs-*") if path.stat().st_size == 5]


def test_nothing_stands_in_for_granular_unasked_and_what_is_missing_says_so() -> None:
    code = """
        import importlib.util, sys
        import fffs
        fffs.install_as_ffrecord()
        assert importlib.util.find_spec("granular") is None, "the folder for ffrecord has none"
        fffs.install_as_granular()
        import granular
        try:
            granular.Loader
        except AttributeError as error:
            sys.exit(str(error))
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert result.stderr == "fffs has no granular.Loader; use fffs.torch.DataLoader\n"


# ---------------------------------------------------------------- Bags


def test_a_bag_is_two_files_and_the_next_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    with BagWriter(str(path)) as writer:
        assert [writer.append(record) for record in (b"one", b"", b"three")] == [0, 1, 2]
        assert (path.read_bytes(), table(tmp_path / "a.idx")) == (b"onethree", (3, 3, 8)), "each append is flushed"
        writer.append(b"four", flush=False)
        assert len(table(tmp_path / "a.idx")) == 3
        assert (len(writer), writer.size) == (4, 12 + 8 * 4)
    with BagWriter(path) as writer:
        assert (len(writer), writer.idx_path) == (4, tmp_path / "a.idx")
        writer.append(b"five")
    with BagReader(path) as reader:
        assert (list(reader), reader.size) == ([b"one", b"", b"three", b"four", b"five"], 16 + 8 * 5)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.bag", "a.idx"]


@pytest.mark.parametrize("left", [b"thr", b"three", b"threefo", b"threefourfive"])
def test_records_that_a_stopped_writer_had_begun_are_completed(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "a.bag"
    with BagWriter(path) as writer:
        writer.append(b"one")
    path.write_bytes(b"one" + left)
    (tmp_path / "a.idx").write_bytes(struct.pack("<Q", 3) + b"\xff\xff\xff")  # and a part of an entry
    with BagWriter(path) as writer:
        assert (len(writer), path.read_bytes()) == (1, b"one" + left)
        writer.append(b"three")
        writer.append(b"four")
    assert table(tmp_path / "a.idx") == (3, 8, 12)
    assert path.read_bytes()[:12] == b"onethreefour"
    with BagReader(path) as reader:
        assert list(reader) == [b"one", b"three", b"four"]


@pytest.mark.parametrize("record", [b"tHree", b"thReefour", b"x" * (3 << 20)])
def test_other_records_than_those_that_were_begun_are_refused_and_nothing_is_changed(
    tmp_path: Path, record: bytes
) -> None:
    path = tmp_path / "a.bag"
    with BagWriter(path) as writer:
        writer.append(b"one")
    path.write_bytes(b"onethree")
    writer = BagWriter(path)
    with pytest.raises(UsageError, match=r"a\.bag: the new record does not match the 5 bytes .* truncate -s 3 "):
        writer.append(record)
    assert (path.read_bytes(), table(tmp_path / "a.idx")) == (b"onethree", (3,))
    with pytest.raises(WriterError, match="closed"):
        writer.append(b"three")
    writer.close()


def test_a_bag_without_its_table_gets_one_only_if_its_bytes_are_appended_again(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    with fffs.granular.BagWriter(path) as old:  # in layout v1
        for record in (b"one", b"two"):
            old.append(record)
    before = path.read_bytes()
    BagWriter(path).close()
    with pytest.raises(UsageError, match="does not match"), BagWriter(path) as writer:
        assert len(writer) == 0
        writer.append(b"other")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])
    with BagReader(path) as reader:
        assert list(reader) == [b"one", b"two"]
    path.write_bytes(b"onetwo")
    with BagWriter(path) as writer:
        writer.append(b"one")
    assert table(tmp_path / "a.idx") == (3,)


def test_a_table_of_records_that_are_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    with BagWriter(path) as writer:
        writer.append(b"one")
    path.write_bytes(b"on")
    with pytest.raises(MetadataError, match="before the last record"):
        BagWriter(path)


def test_a_block_that_raises_keeps_what_was_appended(tmp_path: Path) -> None:
    with pytest.raises(KeyError), BagWriter(tmp_path / "a.bag") as writer:
        writer.append(b"one", flush=False)
        raise KeyError
    assert table(tmp_path / "a.idx") == (3,)


def test_only_one_writer_resumes_and_its_table_has_its_name(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as writer:
        writer.append(b"one")
        with pytest.raises(WriterError, match="another writer is appending"):
            BagWriter(tmp_path / "a.bag")
    with pytest.raises(UsageError, match=r"its table can only be .*a\.idx; omit idx_path"):
        BagWriter(tmp_path / "a.bag", tmp_path / "b.idx")
    BagWriter(tmp_path / "a.bag", str(tmp_path / "a.idx")).close()


def test_a_flush_syncs_nothing_and_close_syncs_all_columns_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    with DatasetWriter(tmp_path / "set", SPEC, ENCODERS) as writer:
        for owner, name in ((os, "fsync"), (os, "fdatasync"), (sync, "sync_files")):
            real = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda fd, name=name, real=real: (calls.append(name), real(fd)))
        for row in rows(0, 5):
            writer.append(row)
        assert (calls, len(table(tmp_path / "set/b.idx"))) == ([], 5)
    assert calls == ["sync_files"]


@pytest.mark.parametrize("name", ["a.bag", "b.idx"])
def test_a_file_that_was_replaced_is_an_error_before_the_writer_is_closed(tmp_path: Path, name: str) -> None:
    writer = DatasetWriter(tmp_path / "set", SPEC, ENCODERS)
    writer.append(rows(0, 1)[0])
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").replace(tmp_path / "set" / name)
    with pytest.raises(WriterError, match="was replaced or removed"):
        writer.close()
    assert writer.closed
    assert (tmp_path / "set" / name).read_bytes() == b""


def test_rows_that_were_flushed_survive_a_killed_writer(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        with DatasetWriter(tmp_path / "set", SPEC, ENCODERS) as writer:
            for row in rows(0, 3):
                writer.append(row)
            writer.append(rows(3, 4)[0], flush=False)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with DatasetReader(tmp_path / "set", DECODERS) as reader:
        assert list(reader) == rows(0, 3)


@pytest.mark.parametrize("single", [True, False])
def test_bags_are_read_from_memory_and_from_files_of_any_name(tmp_path: Path, single: bool) -> None:
    path = tmp_path / "a.bag"
    if single:
        with fffs.granular.BagWriter(path) as old:
            for record in (b"one", b"two"):
                old.append(record)
    else:
        with BagWriter(path) as writer:
            for record in (b"one", b"two"):
                writer.append(record)
    tables = [None] if single else [tmp_path / "a.idx", (tmp_path / "a.idx").read_bytes()]
    (tmp_path / "other").write_bytes(path.read_bytes())
    for bag in (path, str(path), path.read_bytes(), tmp_path / "other"):
        for entries in tables:
            with BagReader(bag, entries, single_file=single) as reader:
                assert (list(reader), reader[0:9], reader.length, reader.size) == (
                    [b"one", b"two"],
                    [b"one", b"two"],
                    2,
                    22,
                )
                for other in (reader.copy(), pickle.loads(pickle.dumps(reader)), copy.copy(reader)):
                    with other:
                        assert other[1] == b"two"
            assert reader.closed


@pytest.mark.parametrize("entries", [(2**64 - 1,), (7,), (4, 3), (3, 2**63)])
def test_a_table_in_memory_is_not_trusted(entries: tuple[int, ...]) -> None:
    damaged = struct.pack(f"<{len(entries)}Q", *entries)
    with pytest.raises((MetadataError, fffs.errors.TruncatedError)), BagReader(b"onetwo", damaged) as reader:
        assert reader[-1]
    with BagReader(b"onetwo", b"") as reader:
        assert (list(reader), reader.size) == ([], 0)


# ---------------------------------------------------------------- data sets


def test_a_data_set_goes_on_where_the_last_writer_stopped(tmp_path: Path) -> None:
    write(tmp_path / "set", rows(0, 3))
    names = {"spec.json", "a.bag", "a.idx", "b.bag", "b.idx"}
    assert {path.name for path in (tmp_path / "set").iterdir()} == names
    with DatasetWriter(tmp_path / "set", SPEC, ENCODERS) as writer:
        assert (len(writer), writer.spec, writer.directory) == (3, {"a": "int", "b": "utf8"}, tmp_path / "set")
        assert [writer.append(row) for row in rows(3, 5)] == [3, 4]
        size = writer.size
        with DatasetReader(tmp_path / "set", DECODERS) as reader:
            assert len(reader) == 5
    with DatasetReader(tmp_path / "set", DECODERS, cache_keys=["a"], parallel=True, pool_name="x") as reader:
        assert (list(reader), reader.size) == (rows(0, 5), size)
        assert (reader[3, ()], reader[3, ("a",)], reader[1:3, ["b"]]) == ({}, {"a": 3}, {"b": ["text 1", "text 2"]})
        for other in (reader.copy(), pickle.loads(pickle.dumps(reader))):
            with other:
                assert other[4] == rows(4, 5)[0]
    assert reader.closed
    with fffs.open(tmp_path / "set") as ours:
        assert ours.read([4]) == rows(4, 5)


def test_columns_that_a_stopped_writer_left_longer_are_compared(tmp_path: Path) -> None:
    write(tmp_path / "set", rows(0, 2))
    with BagWriter(tmp_path / "set/a.bag") as ahead:
        ahead.append(ENCODERS["int"](2))
        ahead.append(ENCODERS["int"](3))
    before = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    with pytest.raises(UsageError, match=r"a\.bag: Record mismatch in column 'a' at index 2: .*cut_to=2\)"):
        write(tmp_path / "set", [{"a": 7, "b": "text 2"}])
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    write(tmp_path / "set", rows(2, 5))
    with DatasetReader(tmp_path / "set", DECODERS) as reader:
        assert list(reader) == rows(0, 5)


def test_a_writer_that_was_killed_at_any_byte_of_a_flush_is_continued(tmp_path: Path) -> None:
    for name, count in (("before", 2), ("after", 4)):
        write(tmp_path / name, rows(0, count))
    steps = []  # a flush writes the records of all columns, and then their tables
    for name in ("a.bag", "b.bag", "a.idx", "b.idx"):
        full, begin = (tmp_path / "after" / name).read_bytes(), (tmp_path / "before" / name).stat().st_size
        steps += [(name, full[:end]) for end in range(begin + 1, len(full) + 1)]
    assert len(steps) == 2 + 12 + 16 + 16
    for name, content in steps:
        (tmp_path / "before" / name).write_bytes(content)  # and what was written before
        killed = tmp_path / f"{name}-{len(content)}"
        shutil.copytree(tmp_path / "before", killed)
        with DatasetWriter(killed, SPEC, ENCODERS) as writer:
            assert 2 <= len(writer) <= 4
            for row in rows(len(writer), 5):
                writer.append(row)
        with DatasetReader(killed, DECODERS) as reader:
            assert list(reader) == rows(0, 5)


def test_a_row_that_cannot_be_encoded_leaves_all_columns_as_they_are(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", SPEC, ENCODERS) as writer:
        for wrong in ({"a": 1}, {"a": 1, "b": 2}, {"a": "x", "b": "y"}):
            with pytest.raises(UsageError):
                writer.append(wrong)
        writer.append(rows(0, 1)[0])
    with DatasetReader(tmp_path / "set", DECODERS) as reader:
        assert list(reader) == rows(0, 1)


def test_codecs_are_looked_up_by_the_whole_type_and_none_means_bytes(tmp_path: Path) -> None:
    spec = {"x": "image/png", "y": "int(8)", "z": "raw"}
    codecs = {"image/png": lambda value: value[::-1], "int(8)": lambda value: value + b"!", "raw": None}
    with DatasetWriter(tmp_path / "set", spec, codecs) as writer:
        writer.append({"x": b"abc", "y": b"def", "z": b"ghi"})
    with DatasetReader(tmp_path / "set", None) as reader:
        assert reader[0] == {"x": b"cba", "y": b"def!", "z": b"ghi"}
    with DatasetReader(tmp_path / "set", codecs) as reader:
        assert reader[0] == {"x": b"abc", "y": b"def!!", "z": b"ghi"}
    with pytest.raises(UsageError, match="the decoder for the type 'image/png' is missing; add one"):
        DatasetReader(tmp_path / "set", {"int(8)": None, "raw": None})
    with pytest.raises(UsageError, match="the encoder for the type 'raw' is missing"):
        DatasetWriter(tmp_path / "other", spec, {"int(8)": None, "image/png": None})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("spec", [{}, {"A": "int"}, {"a": "Int"}, {"a/b": "int"}, {"a\0": "int"}, {"a": 3}])
def test_specs_that_granular_refuses_are_refused(tmp_path: Path, spec: Any) -> None:
    with pytest.raises(UsageError):
        DatasetWriter(tmp_path / "set", spec, None)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", ["basic", "reopened", "not-closed"])
def test_golden_data_sets_are_read_and_continued(tmp_path: Path, name: str) -> None:
    source = GOLDEN / "granular-0.24.2/datasets" / name
    with DatasetReader(source, None) as reader, fffs.open(source) as ours:
        assert len(reader) == ours.n
        before, spec = list(reader), reader.spec
    copied = tmp_path / "set"
    copied.mkdir()
    for path in source.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    with DatasetWriter(copied, spec, None) as writer:
        assert len(writer) == len(before)
        writer.append(dict.fromkeys(spec, b"new"))
    with DatasetReader(copied, None) as reader:
        assert list(reader) == [*before, dict.fromkeys(spec, b"new")]


# ---------------------------------------------------------------- shards


@pytest.mark.parametrize("length", [None, 1, 3, 5])
def test_shards_go_on_where_the_last_one_ended_and_never_get_too_long(tmp_path: Path, length: int | None) -> None:
    for first, stop in ((0, 4), (4, 10)):
        with ShardedWriter(tmp_path / "set", SPEC, ENCODERS, length) as writer:
            for row in rows(first, stop):
                writer.append(row)
            assert writer.shardnum == (stop // length if length else 0)
    with ShardedReader(tmp_path / "set", DECODERS) as reader:
        assert (list(reader), reader.shards) == (rows(0, 10), -(-10 // (length or 10)))
        assert reader[2:5] == {"a": [2, 3, 4], "b": ["text 2", "text 3", "text 4"]}
    parts = []
    for start in range(2 if length else 1):
        with ShardedReader(tmp_path / "set", DECODERS, shardstart=start, shardstep=2) as part:
            with part.copy() as other, pickle.loads(pickle.dumps(part)) as third:
                assert list(other) == list(third) == list(part)
            parts += list(part)
    assert sorted(parts, key=lambda row: row["a"]) == rows(0, 10)


def test_a_shard_that_was_stopped_is_continued_by_comparing(tmp_path: Path) -> None:
    with ShardedWriter(tmp_path / "set", SPEC, ENCODERS, 5) as writer:
        for row in rows(0, 3):
            writer.append(row)
    with BagWriter(tmp_path / "set/000000/b.bag") as ahead:
        ahead.append(b"text 3")
    with ShardedWriter(tmp_path / "set", SPEC, ENCODERS, 5) as writer:
        assert [writer.append(row) for row in rows(3, 8)] == [3, 4, 5, 6, 7]
        assert (writer.shards, len(writer)) == (2, 8)
    with ShardedReader(tmp_path / "set", DECODERS) as reader:
        assert list(reader) == rows(0, 8)


# ---------------------------------------------------------------- sources


def test_sources_shuffle_repeat_and_mix_as_granulars_do() -> None:
    data = list("abcdefgh")
    epochs = sample_sources.Epochs(data, seed=3)
    first, second = ([epochs(step) for step in range(k, k + 8)] for k in (0, 8))
    assert sorted(first) == sorted(second) == data != first != second
    expected = np.random.default_rng(seed=[3, 1]).permutation(np.arange(8))
    assert second == [data[k] for k in expected]
    assert [sample_sources.Sample(data, seed=1)(step) for step in range(5)] == [
        data[np.random.default_rng(seed=[1, step]).choice(8)] for step in range(5)
    ]
    assert [sample_sources.Truncate(data, 3)(step) for step in range(5)] == list("abcab")
    assert [sample_sources.Interleave([data, "xy"])(step) for step in range(4)] == ["a", "x", "b", "y"]
    doubled = sample_sources.Transform(data.__getitem__, lambda sample, seed: (sample, seed), seed=9)
    assert doubled(2) == ("c", [9, 2])
    mixed = sample_sources.Mix([lambda step: 0, lambda step: 1], [1, 3])
    assert 650 < sum(mixed(step) for step in range(1000)) < 850
    with pytest.raises(TypeError, match="int is neither"):
        sample_sources.convert(3)


def test_videos_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mediapy", None)
    with pytest.raises(UsageError, match="needs mediapy, which is not installed"):
        ENCODERS["mp4"](np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(UsageError, match="needs mediapy"):
        pickle.loads(pickle.dumps(DECODERS["webm"]))(b"")
