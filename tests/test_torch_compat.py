"""Code written for ffrecord.torch and ffrecord.utils runs unchanged after install_as_ffrecord()."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fffs

PROGRAM = '''
import pickle, random, sys
import fffs
fffs.install_as_ffrecord()

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader

import ffrecord
from ffrecord import FileReader, FileWriter, PackedFolder, checkFsAlign, pack_folder
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, ReaderRegistry, Subset
from ffrecord.torch.dataset import Dataset as SameDataset
from ffrecord.torch.dataloader import DataLoader as SameLoader
from ffrecord.utils import dump


class Pairs(Dataset):
    def process(self, indexes, data):
        return [pickle.loads(record) for record in data]


class Toy(Dataset):
    """No file at all, and no call of the constructor."""

    def __init__(self):
        self.data = [(torch.rand(4), torch.rand(1)) for _ in range(10)]

    def __getitem__(self, indices):
        return [self.data[index] for index in indices]

    def __len__(self):
        return len(self.data)


class Bytes(Dataset):
    def process(self, indexes, data):
        return data


class Nested(ReaderRegistry):
    def __init__(self, path):
        self.r1, self.r2 = FileReader(path), FileReader(path)


class Holder(Dataset):
    def __init__(self, path):
        self.reader1, self.reader2, self.nested = FileReader(path), FileReader(path), Nested(path)


def main(folder):
    assert SameDataset is Dataset and SameLoader is DataLoader and ffrecord.torch.Dataset is Dataset
    path = folder + "/pairs.ffr"
    writer = FileWriter(path, 100)
    for k in range(100):
        writer.write_one(bytearray(pickle.dumps((k * 2, k * 3))))
    writer.close()
    samples = [(k * 2, k * 3) for k in range(100)]

    for workers in (0, 2):
        loader = DataLoader(Pairs(path), batch_size=8, shuffle=False, num_workers=workers)
        for ours, theirs in zip(loader, TorchLoader(samples, batch_size=8)):
            assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        for shuffle in (True, False):
            arguments = {"batch_size": 4, "shuffle": shuffle, "num_workers": workers}
            whole = iter(TorchLoader(samples, **arguments, generator=torch.Generator().manual_seed(12345)))
            loader = DataLoader(Pairs(path, True), **arguments, generator=torch.Generator().manual_seed(12345))
            loader.set_step(5)
            assert len(loader) == 20
            for _ in range(5):
                next(whole)
            for ours, theirs in zip(loader, whole):
                assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
            loader.set_step(0)
            assert len(loader) == 25
        assert len(list(DataLoader(Toy(), batch_size=3, num_workers=workers, skippable=False))) == 4

    left, right = Bytes(path, True), Bytes(path, True)
    both = ConcatDataset([left, right])
    every = both[list(range(len(both)))]
    assert len(both) == 200 and all(bytes(every[k]) == bytes(left[[k % 100]][0]) for k in range(200))
    chosen = np.random.choice(100, 50)
    subset = Subset(left, chosen)
    assert len(subset) == 50 and all(bytes(subset[[k]][0]) == bytes(left[[chosen[k]]][0]) for k in range(50))
    assert len(Holder(path).ffreaders()) == 4

    raw = [pickle.dumps(k * 2) for k in range(200)]
    dump(raw, folder + "/one.ffr", nfiles=1)
    dump(raw, folder + "/many.ffr", nfiles=64)
    dump(raw[:10], folder + "/few.ffr", nfiles=16, verbose=True)
    for name, n in (("one", 200), ("many", 200), ("few", 10)):
        reader = FileReader(f"{folder}/{name}.ffr", True)
        assert [pickle.loads(record) for record in reader.read(list(range(reader.n)))] == [k * 2 for k in range(n)]

    if len(sys.argv) > 2:
        torch.multiprocessing.set_start_method("spawn", force=True)
        assert len(list(DataLoader(Pairs(path), batch_size=50, num_workers=1))) == 2
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:2])
'''


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_written_for_ffrecord_runs(tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    arguments = [str(tmp_path), *([method] if method == "spawn" else [])]
    command = [sys.executable, "-W", "error", "-W", "ignore:This DataLoader will create", str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["done"], "")


def test_spawned_processes_find_ffrecord_before_they_import_fffs(tmp_path: Path) -> None:
    program = """
        import multiprocessing, sys

        if __name__ == "__main__":
            import fffs
            fffs.install_as_ffrecord()
            sys.path.insert(0, sys.argv[1])
            import theirs
            process = multiprocessing.get_context("spawn").Process(target=theirs.child)
            process.start()
            process.join()
            sys.exit(process.exitcode)
    """
    (tmp_path / "theirs.py").write_text(
        "import ffrecord.torch, sys, fffs.torch\n"
        "def child():\n    sys.exit(not ffrecord.torch.Dataset is fffs.torch.Dataset)\n"
    )
    (tmp_path / "main.py").write_text(textwrap.dedent(program))
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_installing_twice_changes_nothing() -> None:
    program = """
        import sys, fffs
        fffs.install_as_ffrecord()
        path, finders = list(sys.path), len(sys.meta_path)
        fffs.install_as_ffrecord()
        import ffrecord.utils
        assert (sys.path, len(sys.meta_path)) == (path, finders)
        assert ffrecord.utils.dump is fffs.utils.dump
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_pickles_of_readers_keep_their_name(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        writer.write_one(b"1")
    assert pickle.loads(pickle.dumps(fffs.FileReader(tmp_path / "a.ffr"))).read_one(0).tobytes() == b"1"
