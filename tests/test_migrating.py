"""The programs of docs/migrating.md run, on small data of each format, and print what they should."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import record_file
from examples import ROOT, Block, blocks, environment, run_console

import fffs


def sections() -> dict[str, list[Block]]:
    """Return the blocks of each section by the last word of its title."""
    page = ROOT / "docs/migrating.md"
    titles = [(k, line) for k, line in enumerate(page.read_text().splitlines(), 1) if line.startswith("## ")]
    found: dict[str, list[Block]] = {}
    for block in blocks(page):
        title = max(title for title in titles if title[0] < block.line)[1]
        found.setdefault(title.removeprefix("## From "), []).append(block)
    return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """``run(section)`` runs the commands and programs of a section, and returns what the programs print."""
    monkeypatch.chdir(tmp_path)

    def run(section: str) -> str:
        for block in sections()[section]:
            if block.language == "console":
                run_console(block, tmp_path)
            elif block.language == "python":
                exec(compile(block.text, f"migrating.md, line {block.line}", "exec"), {"__name__": "migrating"})
        return capsys.readouterr().out

    return run


def test_an_image_folder(tmp_path: Path, run: Callable[[str], str]) -> None:
    for name, content in (("cat/1.jpg", b"meow"), ("dog/1.jpg", b"woof!")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        (tmp_path / "photos" / name).write_bytes(content)
    fffs.pack_folder(tmp_path / "photos", tmp_path / "photos.ffr")
    assert run("small files and ImageFolder") == "['cat', 'dog'] (4, 0) 2\n"


def test_webdataset(tmp_path: Path, run: Callable[[str], str]) -> None:
    (tmp_path / "shards").mkdir()
    for k in range(8):
        for ending, content in (("jpg", f"image {k}"), ("cls", str(k))):
            (tmp_path / f"{k:06d}.{ending}").write_text(content)
    for shard in range(2):
        with tarfile.open(tmp_path / f"shards/data-{shard:06d}.tar", "w") as archive:
            for k in range(4 * shard, 4 * shard + 4):
                for ending in ("jpg", "cls"):
                    archive.add(tmp_path / f"{k:06d}.{ending}", f"{k:06d}.{ending}")
    assert run("WebDataset") == "4 True\n" * 2


def run_alone(section: str, folder: Path) -> bytes:
    """Run the program of a section in a process of its own, where fffs takes another library's name."""
    (block,) = sections()[section]
    command = [sys.executable, "-W", "error", "-c", block.text]
    return subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.PIPE).stdout


def test_ffrecord(tmp_path: Path) -> None:
    (tmp_path / "old.ffr").write_bytes(record_file([b"a record"]))
    assert run_alone("ffrecord", tmp_path) == b"1 b'a record'\n"


def test_granular(tmp_path: Path) -> None:
    printed = b"7 {'image': b'2', 'label': 2} {'label': [5, 6]}\n"
    assert run_alone("granular", tmp_path) == printed


def test_tfrecord(tmp_path: Path, run: Callable[[str], str]) -> None:
    for k in range(2):
        with fffs.tfrecord.TFRecordWriter(tmp_path / f"train.tfrecord-{k:05d}-of-00002") as writer:
            writer.write_one(fffs.tfrecord.encode({"image": b"pixels", "label": 7}))
    assert run("TFRecord and tf.data") == "2 (b'pixels', 7)\n"
