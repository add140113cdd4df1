"""PackedFolder: an image folder in one file, with ImageFolder's conventions."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_samples import WARNINGS, write

import fffs
from fffs.errors import UsageError
from fffs.torch import DataLoader, PackedFolder

GRANULAR = Path(__file__).parent / "golden/granular"

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]

FILES = {
    "dog/b.jpg": b"dog b",
    "dog/a.PNG": b"dog a!",
    "dog/more/c.jpg": b"c",
    "dog/more-c.jpg": b"-",
    "cat/x.txt": b"text",
    "cat/x.jpg": b"cat x",
    "bird/é.jpg": b"bird",
    "readme.md": b"no class",
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, data in FILES.items():
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_bytes(data)
    os.symlink("x.jpg", folder / "in/cat/link.jpg")
    os.symlink("../dog", folder / "in/cat/dog")
    fffs.pack_folder(folder / "in", folder / "images.ffr")
    return folder / "images.ffr"


def image_folder(root: Path, endings: tuple[str, ...]) -> list[tuple[str, int]]:
    """Make an image folder. Returns what torchvision's ImageFolder finds, except in linked folders."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    found = []
    for k, name in enumerate(classes):
        for folder, _, names in sorted(os.walk(root / name)):
            found += [(os.path.join(folder, file), k) for file in sorted(names)]
    found = [(path, k) for path, k in found if path.lower().endswith(endings)]
    return [(os.path.relpath(path, root), k) for path, k in found if os.path.isfile(path)]


@pytest.mark.parametrize("endings", [("",), (".jpg", ".png"), (".jpg",)])
def test_classes_and_samples_are_those_of_image_folder(pack: Path, endings: tuple[str, ...]) -> None:
    dataset = PackedFolder(pack, extensions=endings)
    assert dataset.classes == ["bird", "cat", "dog"]
    assert dataset.class_to_idx == {"bird": 0, "cat": 1, "dog": 2}
    assert dataset.samples == dataset.imgs == image_folder(pack.parent / "in", endings)
    assert dataset.targets == [target for _, target in dataset.samples]
    for k, (path, target) in enumerate(dataset.samples):
        data, found = dataset[k]
        assert (data.tobytes(), found) == ((pack.parent / "in" / path).read_bytes(), target)


# Names whose order differs by bytes and as text, whose bytes are characters only together, and letters whose lower case
# is ASCII or longer.
PARTS = ["a", "b-c", "b", "B.JPG", "c.jpg", ".jpg", "jpg", "x.mk", "b-c.JPG", "é", "\uffee", "\uffee.jpg", "\ue000"]
PARTS += ["x.m\u212a", "\u0130.jpg", "\u212a.jpg", "\udcff", "\udc84\udcaa", "\udcc3", "\udca9.jpg", "\U0001f600"]
ENDINGS = ["", ".jpg", "jpg", ".mk", "k", "é", "a/c.jpg", ".JPG", "x.mk", "\udca9.jpg", "i\u0307.jpg", "ten letters"]


@pytest.mark.parametrize("seed", range(40))
def test_samples_of_any_tree_are_in_the_order_of_their_text(tmp_path: Path, seed: int) -> None:
    dice, root = random.Random(seed), tmp_path / "in"
    root.mkdir()
    (root / "file.jpg.mk").write_bytes(b"for links")
    for _ in range(dice.choice((5, 60, 300))):
        path = root.joinpath(dice.choice(PARTS[: 1 + seed % 4]), *dice.choices(PARTS, k=dice.randint(1, 3)))
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if dice.random() < 0.2:
                path.symlink_to(os.path.relpath(dice.choice(list(root.rglob("*"))), path.parent))
            elif not path.exists():
                path.write_bytes(os.fsencode(str(path)))
    fffs.pack_folder(root, tmp_path / "p.ffr")
    for endings in (("",), *((ending,) for ending in ENDINGS), tuple(dice.sample(ENDINGS, 3))):
        expected = image_folder(root, endings)
        empty = len({target for _, target in expected}) < sum(entry.is_dir() for entry in os.scandir(root))
        with pytest.raises(FileNotFoundError) if empty else contextlib.nullcontext():
            dataset = PackedFolder(tmp_path / "p.ffr", extensions=endings)
            assert dataset.samples == expected
            assert [data.tobytes() for data, _ in dataset[range(len(dataset))]] == [
                (root / path).read_bytes() for path, _ in expected
            ]


def test_names_that_are_text_only_together_are_in_the_order_of_their_text(tmp_path: Path) -> None:
    # By bytes, the last byte of the first name and the first one of the second make "é"; as text, the third precedes.
    names = [b"a\xc3", b"\xa9.jpg", "é".encode()]
    (tmp_path / "in/cat").mkdir(parents=True)
    for name in names:
        (tmp_path / "in/cat" / os.fsdecode(name)).write_bytes(name)
    fffs.pack_folder(tmp_path / "in", tmp_path / "p.ffr")
    dataset = PackedFolder(tmp_path / "p.ffr")
    assert dataset.samples == [(os.fsdecode(b"cat/" + names[k]), 0) for k in (0, 2, 1)]


def decode(data: Any) -> Any:
    return np.array([len(data), data[0]])


def test_transforms_decode_and_batches_are_loaded(pack: Path) -> None:
    dataset = PackedFolder(pack, transform=decode, target_transform=str)
    for workers in (0, 2):
        batches = list(DataLoader(dataset, batch_size=3, num_workers=workers))
        assert [name for _, names in batches for name in names] == [str(target) for target in dataset.targets]
        sizes = [size for images, _ in batches for size in images[:, 0].tolist()]
        assert sizes == [len((pack.parent / "in" / path).read_bytes()) for path, _ in dataset.samples]


def test_lists_and_negative_indices(pack: Path) -> None:
    dataset = PackedFolder(pack)
    assert [data.tobytes() for data, _ in dataset[[-1, 0, 0]]] == [b"c", b"bird", b"bird"]
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    with pytest.raises(TypeError):
        dataset["cat"]


def test_samples_are_never_named_after_another_pack(tmp_path: Path, pack: Path) -> None:
    path = tmp_path / "copy.ffr"
    path.write_bytes(pack.read_bytes())
    dataset = PackedFolder(path)
    (tmp_path / "f/cat").mkdir(parents=True)
    (tmp_path / "f/cat/other.jpg").write_bytes(b"other")
    fffs.pack_folder(tmp_path / "f", path)
    with pytest.raises(fffs.errors.SourceChangedError, match=r"copy\.ffr: not the same file any more"):
        _ = dataset.samples
    path.write_bytes(pack.read_bytes())
    assert dataset.samples == PackedFolder(pack).samples


def test_samples_never_get_the_labels_of_another_pack(tmp_path: Path, pack: Path) -> None:
    path = tmp_path / "copy.ffr"
    path.write_bytes(pack.read_bytes())
    dataset = PackedFolder(path)
    pickled = pickle.dumps(dataset)
    shutil.copytree(pack.parent / "in", tmp_path / "f", symlinks=True)
    for old, new in (("cat", "tmp"), ("dog", "cat"), ("tmp", "dog")):
        (tmp_path / "f" / old).rename(tmp_path / "f" / new)
    fffs.pack_folder(tmp_path / "f", path)
    with pytest.raises(fffs.errors.SourceChangedError, match=r"copy\.ffr: not the same file any more"):
        pickle.loads(pickled)
    with pytest.raises(fffs.errors.SourceChangedError, match=r"copy\.ffr: not the same file any more"):
        iter(DataLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn"))


def test_names_and_lists_are_not_sent_to_workers(pack: Path) -> None:
    dataset = PackedFolder(pack)
    before = pickle.dumps(dataset)
    assert dataset.samples and dataset.targets
    data = pickle.dumps(dataset)
    assert b"x.jpg" not in data and len(data) == len(before)
    copy = pickle.loads(data)
    assert (copy.samples, copy.targets) == (dataset.samples, dataset.targets)


def test_a_loop_over_the_indices_of_a_list_makes_one_list(pack: Path) -> None:
    dataset = PackedFolder(pack)
    for name in ("targets", "samples", "imgs", "classes", "class_to_idx"):
        assert getattr(dataset, name) is getattr(dataset, name), name


def test_what_has_no_classes_or_samples_is_refused(tmp_path: Path, pack: Path) -> None:
    write(tmp_path / "plain.ffr", 3)
    with pytest.raises(fffs.errors.FormatError, match="not a packed folder"):
        PackedFolder(tmp_path / "plain.ffr")
    for kind in (PackedFolder, fffs.PackedFolder):
        with pytest.raises(fffs.errors.FormatError, match="not a packed folder"):
            kind(GRANULAR / "granular-0.24.2/datasets/basic")
    with pytest.raises(FileNotFoundError, match=r"no file ending in \.gif is in: bird, cat, dog$"):
        PackedFolder(pack, extensions=".gif")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/a.jpg").write_bytes(b"a")
    fffs.pack_folder(tmp_path / "flat", tmp_path / "flat.ffr")
    with pytest.raises(FileNotFoundError, match="subfolders"):
        PackedFolder(tmp_path / "flat.ffr")
    with pytest.raises(FileNotFoundError):
        PackedFolder(tmp_path / "missing.ffr")


def test_a_single_sample_is_that_of_a_batch_of_one(pack: Path) -> None:
    class Marked(PackedFolder):
        def __getitem__(self, indices: Any) -> Any:
            found = super().__getitem__(indices)
            return [(*sample, "x") for sample in found] if isinstance(found, list) else (*found, "x")

    class Whole(PackedFolder):
        def process(self, indices: Any, data: Any) -> Any:
            return {"data": data}

    marked, plain = Marked(pack), PackedFolder(pack)
    assert marked[3][1:] == marked[[3]][0][1:] == (plain[3][1], "x")
    assert bytes(marked[3][0]) == bytes(plain[3][0])
    with pytest.raises(UsageError, match="Whole returned dict for 1 record"):
        Whole(pack)[3]
