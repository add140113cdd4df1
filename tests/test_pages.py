"""The programs and commands of pages in docs/ run, on small data with the names that they have there."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from examples import ROOT, Block, blocks, commands, environment

import fffs

few_processors = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")


def block_with(page: str, text: str) -> Block:
    """Return the block of a page that has a text."""
    (found,) = (block for block in blocks(ROOT / "docs" / page) if text in block.text)
    return found


def run(page: str, text: str, change: tuple[str, str] = ("", ""), **names: Any) -> tuple[dict[str, Any], str]:
    """Run the program of a page that has a text. Returns the names that it defines, and what it prints.

    change: what is replaced in the program before, and by what. names: what it uses.
    """
    block, module = block_with(page, text), types.ModuleType("page")
    vars(module).update(names, fffs=fffs)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text.replace(*change), f"{page}, line {block.line}", "exec"), vars(module))
    return vars(module), printed.getvalue()


def commands_of(page: str, text: str) -> list[str]:
    """Return the commands of a page, from the block that has a text."""
    return [command for command, _ in commands(block_with(page, text))]


def run_commands(*lines: str) -> None:
    """Run commands in the current folder. None may fail."""
    for line in lines:
        done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder ``photos``, with samples of WebDataset, and ``photos.ffr``, in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos/2024"
    folder.mkdir(parents=True)
    for k in range(20):
        (folder / f"{k:04d}.jpg").write_bytes(b"image %d" % k)
        (folder / f"{k:04d}.cls").write_bytes(b"%d" % (k % 4))
    with zipfile.ZipFile(folder / "july.zip", "w") as archive:
        archive.writestr("inner.txt", "text")
    fffs.pack_folder("photos", "photos.ffr")
    return tmp_path


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``train.ffr``, ``train.tfrecord`` and shards of both kinds of names, in the current folder."""
    monkeypatch.chdir(tmp_path)
    records = [fffs.tfrecord.encode({"image": b"pixels", "label": k}) for k in range(150)]
    with fffs.FileWriter("train.ffr", len(records)) as writer:
        for record in records:
            writer.write_one(record)
    (tmp_path / "mnist").mkdir()
    names = ["train.tfrecord", "train-00000-of-00010.tfrecord", "mnist/test.tfrecord-00000-of-00001"]
    for name in [*names, *(f"mnist/train.tfrecord-{k:05d}-of-00010" for k in range(10))]:
        with fffs.tfrecord.TFRecordWriter(name) as file:
            for record in records:
                file.write_one(record)
    return tmp_path


# ---------------------------------------------------------------- reading.md


def test_reading_packs_and_records(photos: Path) -> None:
    (photos / "photos.ffr").unlink()
    names, _ = run("reading.md", "FileWriter(")
    assert len(names["images"]) == 41 and [bytes(one) for one in names["batch"]] == [b"three", b"one", b"two"]


def test_reading_shards(train: Path) -> None:
    names, _ = run("reading.md", "train-00000-of-00010.tfrecord")
    assert len(names["examples"]) == 128 and int(names["examples"][5]["label"][0]) == 5
    names, _ = run("reading.md", "expand_shards")
    assert (len(names["everything"]), len(names["train"])) == (11 * 150, 10 * 150)
    names["everything"].close()
    names["train"].close()


def test_reading_a_pack_as_folders(photos: Path) -> None:
    names, printed = run("reading.md", "walk(", zipfile=zipfile)
    assert names["names"] == ["inner.txt"] and printed.startswith("2024 ")


@few_processors
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_reading_samples(photos: Path) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    names, printed = run("reading.md", "samples[7]", StatefulDataLoader=torchdata.StatefulDataLoader, decode=list)
    assert printed == "21 {'__key__': '2024/0007', 'cls': b'3', 'jpg': b'image 7'}\n"
    assert names["loader"].batch_size == 64


def test_reading_with_datasets_of_hugging_face(photos: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for name in ("0001.cls", "0001.jpg", "july.zip"):
        (photos / "photos/2024" / name).unlink()
    fffs.pack_folder("photos", "packed", parts=5)  # which may begin within a sample
    # dill copies the modules that a function uses, except those in site-packages, where an editable install is not.
    change = ("def rows(ranges):\n", "def rows(ranges):\n    import fffs\n")
    names, _ = run("reading.md", "from_generator", change, datasets=datasets)
    labels = [row["label"] for row in names["data"]]
    assert labels[:3] == [0, 2, 3] and len(labels) == len(fffs.PackedSamples("packed"))


def test_reading_ahead(train: Path) -> None:
    used: list[int] = []
    with fffs.FileReader("train.ffr") as reader:
        run(
            "reading.md",
            "prefetch(",
            reader=reader,
            sampler=[[1, 2], [5], [7, 8]],
            use=lambda got: used.append(len(got)),
        )
    assert used == [2, 1, 2]


# ---------------------------------------------------------------- training.md


@few_processors
def test_training(photos: Path, train: Path) -> None:
    checkpoint: dict[str, Any] = {}
    names, _ = run("training.md", "transform=decode", decode=bytes)
    assert len(names["photos"]) == 41
    names, _ = run("training.md", "class Samples", decode=len, checkpoint=checkpoint)
    assert len(names["loader"]) == 2 and checkpoint["loader"]


@few_processors
def test_training_on_nodes_that_come_and_go(photos: Path) -> None:
    names, _ = run("training.md", "ElasticBatchSampler", ("90", "1"), transform=len, checkpoint=None)
    assert names["epoch"] == 0 and len(names["labels"]) == 41


# ---------------------------------------------------------------- converting.md, formats.md


def make_shards(folder: Path, count: int) -> None:
    """Write archives of WebDataset into the folder ``shards``, of 20 samples each."""
    (folder / "shards").mkdir()
    for shard in range(count):
        with tarfile.open(folder / f"shards/data-{shard:06d}.tar", "w") as archive:
            for k in range(20 * shard, 20 * shard + 20):
                member = tarfile.TarInfo(f"{k:06d}.jpg")
                member.size = 5
                archive.addfile(member, io.BytesIO(b"image"))


def test_converting(photos: Path, train: Path) -> None:
    with tarfile.open("images.tar.gz", "w:gz") as archive:
        archive.add("photos")
    make_shards(photos, 20)
    lines = commands_of("converting.md", "images.tar.gz")
    run_commands(*(line.replace("processes:8", "processes:2") for line in lines))
    with (
        fffs.PackedFolder("images.ffr") as images,
        fffs.open("train.bag") as bag,
        fffs.PackedFolder("packed") as packed,
    ):
        assert len(images.list("photos/2024")) == 41 and bag.n == 150 and len(packed.list("")) == 400
    Path("train.ffr").unlink()
    run("converting.md", "verify=True")
    with fffs.FileReader("train.ffr") as reader:
        assert reader.n == 150


def test_converting_webdataset(train: Path) -> None:
    make_shards(train, 20)
    pack, unpack, records = commands_of("formats.md", "--key jpg")
    run_commands(pack)
    shutil.rmtree("shards")
    run_commands(unpack, records)
    assert os.listdir("shards") == ["shards-000000.tar"]
    with tarfile.open("train.tar") as archive:
        assert archive.getnames()[:2] == ["000000.jpg", "000001.jpg"]


def test_converting_tables(photos: Path, train: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"image": [b"one", b"two"], "label": [1, 2]}), "train.parquet")
    cells, column, table, records = commands_of("formats.md", "--column image")
    run_commands(table, records)
    for name in ("train.ffr", "train.tfrecord"):
        Path(name).unlink()
    run_commands(cells, column)
    with fffs.PackedFolder("train.ffr") as packed, fffs.open("train.tfrecord") as reader:
        assert packed.list("") == ["000000.image", "000000.label", "000001.image", "000001.label"]
        assert bytes(reader.read_one(1)) == b"two"
    assert parquet.read_table("photos.parquet").column_names == ["path", "bytes"]
    assert parquet.read_table("train").column_names == ["image"]


def test_converting_array_record(train: Path) -> None:
    pytest.importorskip("array_record")
    read, write = commands_of("formats.md", "--to array_record")
    run_commands(write)
    (shard,) = Path("train").iterdir()
    shard.rename("mnist-train.array_record-00000-of-00001")
    run_commands(read)
    with fffs.FileReader("mnist.ffr") as reader, fffs.FileReader("train.ffr") as source:
        assert [bytes(record) for record in reader] == [bytes(record) for record in source]


def test_converting_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lmdb = pytest.importorskip("lmdb")
    monkeypatch.chdir(tmp_path)
    with lmdb.open("train.lmdb") as database, database.begin(write=True) as transaction:
        transaction.put(b"key", b"value")
    names, values = commands_of("formats.md", "--column value")
    run_commands(names)
    with fffs.PackedFolder("train.ffr") as packed:
        assert packed.list("") == ["key"]
    Path("train.ffr").unlink()
    run_commands(values)
    with fffs.FileReader("train.ffr") as reader:
        assert bytes(reader.read_one(0)) == b"value"


# ---------------------------------------------------------------- cluster.md, engines.md, mounting.md, fsspec.md


def test_records_in_dask(photos: Path, train: Path) -> None:
    dask = pytest.importorskip("dask")
    (photos / "shared").mkdir()
    shortened: dict[str, Any] = {"shrink": lambda row: (row[0], row[1][:1]), "encode": lambda row: row[1]}
    with dask.config.set(scheduler="synchronous"):
        names, _ = run("engines.md", "import fffs.dask", ("s3://bucket/train.tfrecord", "train.tfrecord"), **shortened)
        assert names["frame"].compute()["label"].tolist() == list(range(150))
    assert len(names["sizes"]) == 41
    with fffs.open("shared/encoded") as records, fffs.PackedFolder("shared/small") as small:
        assert records.n == 41 and bytes(small.read_one("2024/0003.jpg")) == b"i"


def test_plans_of_a_cluster(photos: Path) -> None:
    (photos / "packed").mkdir()
    run("cluster.md", "plan_pack(")
    _, printed = run("cluster.md", "plan_verify(")
    assert printed == "61 []\n"


@pytest.mark.fuse
def test_mounting_from_python(photos: Path) -> None:
    _, printed = run("mounting.md", "mounted(")
    assert printed == "20\n"


def test_reading_through_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop/2026").mkdir(parents=True)
    (tmp_path / "shop/2026/sales.csv").write_text("a,b\n1,2\n")
    parquet.write_table(arrow.table({"n": [1, 2]}), "shop/n.parquet")
    fffs.pack_folder("shop", "shop.ffr")
    names, _ = run("fsspec.md", "read_parquet(", ("s3://bucket/shop.ffr", "shop.ffr"))
    assert names["fs"].find("") == ["2026/sales.csv", "n.parquet"]
