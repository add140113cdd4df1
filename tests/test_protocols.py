"""Readers are what the loaders of other libraries expect: each is used with the real library."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from builders import stretched
from test_array_record import write_array_record
from test_convert import write_ffr
from test_export_tar import samples_of

import fffs
from fffs import granular
from fffs.errors import ChecksumError, ClosedError, RecordIndexError, UsageError

RECORDS = [stretched(k * 10, k) for k in range(50)]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write_ffr(tmp_path / "x.ffr", RECORDS)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A pack of samples, and of names that belong to none."""
    root = tmp_path / "photos"
    for place in ("a", "a.d", "deep/er"):
        (root / place).mkdir(parents=True)
    for k in range(6):
        for name in (f"a-{k}.x", f"a/s{k}.CLS", f"a/s{k}.seg.png", f"a.d/t{k}.jpg", f"deep/er/{k}.txt"):
            (root / name).write_bytes(stretched(100 * k, k) + name.encode())
    for name in ("a.a", "a.z", "README", ".hidden.txt"):
        (root / name).write_bytes(name.encode())
    os.symlink("README", root / "a.link")
    fffs.pack_folder(root, tmp_path / "photos.ffr")
    return tmp_path / "photos.ffr"


# ---------------------------------------------------------------- samples


def test_samples_are_those_of_webdataset(photos: Path, tmp_path: Path) -> None:
    fffs.convert(photos, tmp_path / "x.tar", warn=lambda _: None)
    expected = []
    for sample in samples_of([tmp_path / "x.tar"]):
        expected.append(
            {key.lower() if key != "__key__" else key: data for key, data in sample.items() if key != "__url__"}
        )
    with fffs.PackedSamples(photos) as samples:
        assert list(samples) == expected
        assert len(samples) == len(expected) == 25
        assert samples[3] == expected[3]
        assert samples[-1] == expected[-1]
        assert samples[2:7] == expected[2:7]
        assert samples.__getitems__([4, 0, -2, 4]) == [expected[k] for k in (4, 0, -2, 4)]
        assert samples._getitems([1]) == [expected[1]]
        assert {"__key__": "a", "a": b"a.a", "z": b"a.z"} in expected
        for number in (25, -26):
            with pytest.raises(RecordIndexError, match=f"there is no sample {number}: there are 25"):
                samples[number]


def test_samples_can_be_copied_and_end_with_their_folder(photos: Path) -> None:
    with fffs.PackedFolder(photos) as folder:
        samples = fffs.PackedSamples(folder)
        again = pickle.loads(pickle.dumps(samples))
        assert again[5] == samples[5] == copy.copy(samples)[5]
        again.close()
        with pytest.raises(ClosedError):
            again[0]
        assert samples[6]["__key__"] == "a"


def test_samples_of_several_packs_and_of_none(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    fffs.pack_folder(tmp_path / "f", tmp_path / "none.ffr")
    with fffs.PackedSamples(tmp_path / "none.ffr") as samples:
        assert (len(samples), list(samples), samples[:]) == (0, [], [])
    (tmp_path / "f/a.q").write_bytes(b"more")
    fffs.pack_folder(tmp_path / "f", tmp_path / "more.ffr")
    with fffs.PackedSamples([photos, tmp_path / "more.ffr"]) as samples:
        assert samples[6] == {"__key__": "a", "a": b"a.a", "q": b"more", "z": b"a.z"}


def test_endings_that_would_hide_others_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for name in ("x.jpg", "x.JPG", "y.jpg", "z.__KEY__"):
        (tmp_path / "f" / name).touch()
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    with fffs.PackedSamples(tmp_path / "f.ffr") as samples:
        assert samples[1] == {"__key__": "y", "jpg": b""}
        with pytest.raises(UsageError, match="'x': two files of this sample have the same ending"):
            samples[0]
        with pytest.raises(UsageError, match="'z': the ending __key__ is that of the key"):
            samples[2]


def test_a_damaged_file_is_an_error_of_its_sample(photos: Path) -> None:
    data = bytearray(photos.read_bytes())
    at = data.index(b"deep/er/3.txt")
    data[at] ^= 1
    photos.write_bytes(data)
    with fffs.PackedSamples(photos) as samples:
        bad = [k for k in range(len(samples)) if samples._samples.files(k)[0] == "deep/er/3"]
        with pytest.raises(ChecksumError):
            samples[bad[0]]
        assert samples[bad[0] + 1]["__key__"] == "deep/er/4"


# ---------------------------------------------------------------- loaders of torch

OF_TORCH = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def torchdata_loader(data: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torchdata says about its own future
        from torchdata.stateful_dataloader import StatefulDataLoader
    return StatefulDataLoader(data, **options)


@OF_TORCH
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_resumes_in_the_middle(records: Path, workers: int) -> None:
    options = {"batch_size": 4, "num_workers": workers, "collate_fn": lambda batch: [bytes(record) for record in batch]}
    with fffs.open(records) as reader:
        whole = list(torchdata_loader(reader, **options))
        assert [record for batch in whole for record in batch] == RECORDS
        loader = torchdata_loader(reader, **options)
        batches = iter(loader)
        begun = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        del batches
        again = torchdata_loader(reader, **options)
        again.load_state_dict(state)
        assert begun + list(again) == whole


@OF_TORCH
def test_torchdata_gets_samples_in_batches(photos: Path) -> None:
    with fffs.PackedSamples(photos) as samples:
        loader = torchdata_loader(samples, batch_size=7, collate_fn=lambda batch: batch)
        assert [sample for batch in loader for sample in batch] == list(samples)


# ---------------------------------------------------------------- Grain

WITH_GRAIN = """
import sys

import grain

import fffs

if __name__ == "__main__":
    with fffs.open(sys.argv[1]) as reader:
        records = [bytes(record) for record in reader]

        data = grain.MapDataset.source(reader).shuffle(seed=3).map(bytes).batch(4, batch_fn=list)
        assert sorted(record for batch in data for record in batch) == sorted(records)
        batches, again = (iter(data.to_iter_dataset()) for _ in range(2))
        next(batches)
        again.set_state(batches.get_state())
        assert list(again) == list(batches)

        asked, read = [], reader.read
        reader.read = lambda indices: asked.append(indices) or read(indices)
        found = grain.MapDataset.source(reader)._getitems([7, 3, 49])
        assert [bytes(record) for record in found] == [records[7], records[3], records[49]]
        assert asked == [[7, 3, 49]]
        del reader.read

        whole = grain.sharding.NoSharding()
        order = grain.samplers.IndexSampler(len(reader), shuffle=True, seed=1, num_epochs=1, shard_options=whole)
        for workers in (0, 1):
            loader = grain.DataLoader(data_source=reader, sampler=order, worker_count=workers)
            assert sorted(bytes(record) for record in loader) == sorted(records)
    print("read by Grain")
"""


def test_grain_takes_a_reader_resumes_and_asks_for_several_records(records: Path, tmp_path: Path) -> None:
    """In a process of its own: what Grain imports and starts must not be in those of other tests."""
    program = tmp_path / "with_grain.py"
    program.write_text(WITH_GRAIN)
    done = subprocess.run([sys.executable, program, records], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "read by Grain\n"), done.stderr


# ---------------------------------------------------------------- Hugging Face


def test_hugging_face_makes_a_data_set_of_a_pack(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets

    datasets.disable_progress_bars()
    with fffs.PackedSamples(photos) as samples:
        wanted = [{"key": sample["__key__"], "data": sample["txt"]} for sample in samples if "txt" in sample]

    def rows(shards: list[str]) -> Any:
        from fffs import PackedSamples  # here, because dill copies global modules that are not in site-packages

        for shard in shards:
            with PackedSamples(shard) as samples:
                for sample in samples:
                    if "txt" in sample:
                        yield {"key": sample["__key__"], "data": sample["txt"]}

    shards = [str(photos), str(photos)]
    features = datasets.Features({"key": datasets.Value("string"), "data": datasets.Value("binary")})
    made = datasets.Dataset.from_generator(
        rows, features=features, gen_kwargs={"shards": shards}, cache_dir=str(tmp_path / "hf"), num_proc=None
    )
    assert list(made) == wanted * 2
    stream = datasets.IterableDataset.from_generator(rows, features=features, gen_kwargs={"shards": shards})
    assert stream.num_shards == 2
    assert list(stream) == wanted * 2
    made.save_to_disk(str(tmp_path / "saved"))
    assert fffs.convert(tmp_path / "saved", tmp_path / "back.ffr", column="data", warn=lambda _: None).items == 12
    with fffs.open(tmp_path / "back.ffr") as reader:
        assert [bytes(record) for record in reader] == [row["data"] for row in wanted] * 2


# ---------------------------------------------------------------- array_record


def test_a_reader_is_a_data_source_as_that_of_array_record(records: Path, tmp_path: Path) -> None:
    other = write_array_record(tmp_path / "x.array_record", RECORDS)
    with ArrayRecordDataSource(str(other)) as theirs, fffs.open(records) as ours:
        assert len(ours) == len(theirs) == 50
        assert bytes(ours[7]) == theirs[7]
        assert [bytes(record) for record in ours.__getitems__([9, 3, 9])] == theirs.__getitems__([9, 3, 9])
        assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(ours))


@pytest.mark.parametrize("name", ["x.ffr", "x.tfrecord", "x.bag", "granular.bag", "set"])
def test_every_reader_is_a_sequence(tmp_path: Path, name: str) -> None:
    write_ffr(tmp_path / "source.ffr", RECORDS)
    fffs.convert(tmp_path / "source.ffr", tmp_path / name, to={"set": "granular"}.get(name), warn=lambda _: None)

    def plain(item: Any) -> bytes:
        return bytes(item["data"] if isinstance(item, dict) else item)

    with (granular.BagReader if name == "granular.bag" else fffs.open)(tmp_path / name) as reader:
        assert len(reader) == 50
        assert plain(reader[7]) == plain(reader[-43]) == RECORDS[7]
        assert [plain(item) for item in reader] == RECORDS
        rows = reader[10:13]  # granular has a dictionary of lists here
        assert [bytes(item) for item in (rows["data"] if name == "set" else rows)] == RECORDS[10:13]
        assert [plain(item) for item in reader.__getitems__([5, 2])] == [RECORDS[5], RECORDS[2]]
        assert [plain(item) for item in reader._getitems([5, 2])] == [RECORDS[5], RECORDS[2]]
        with pytest.raises(IndexError):
            reader[50]
