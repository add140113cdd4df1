"""``unpack``: a pack of very many tiny files into a folder, against ``tar xf`` followed by ``sync`` of the file system.

fffs syncs the file system as well before the folder gets its name.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, in_turns, paired_ratio

FFFS = (sys.executable, "-m", "fffs")


def _unpack(pack: Path, target: Path) -> None:
    subprocess.run([*FFFS, "unpack", "--quiet", pack, target], check=True)


def _untar(archive: Path, target: Path) -> None:
    target.mkdir()
    subprocess.run(["tar", "xf", archive, "-C", target], check=True)
    subprocess.run(["sync", "-f", target], check=True)


def run(report: Report, scratch: Path, quick: bool) -> None:
    folders, rounds = (20, 3) if quick else (250, 3)
    folder = data.tiny_folder(scratch, folders, 1000)
    with tempfile.TemporaryDirectory(dir=scratch) as room:
        pack, archive = Path(room, "p.ffr"), Path(room, "p.tar")
        subprocess.run([*FFFS, "pack", "--quiet", folder, pack], check=True)
        subprocess.run(["tar", "cf", archive, "-C", folder, "."], check=True)
        # Each goes to a folder of its own: for some minutes, ext4 passes over the inodes of removed files, one by one.
        # After 1,000,000 were removed, making as many took 100 s instead of 25 s.
        targets = (Path(room, f"target-{k}") for k in itertools.count())

        def prepare() -> None:
            subprocess.run(["sync", "-f", room], check=True)
            for source in (pack, archive):
                page_cache.warm(source)
            page_cache.have_memory(8192 * 1000 * folders)  # a page and an inode of each file

        taken = in_turns(
            lambda: _unpack(pack, next(targets)), lambda: _untar(archive, next(targets)), prepare, "unpacking", rounds
        )
        # Before all that is removed.
        rates = [1000 * folders / statistics.median(times) for times in taken]
        what = f"{1000 * folders:,} files of 16 bytes, durably"
        ratio = paired_ratio(*reversed(taken))
        report.add(Figure("unpack", what, rates[0], "files/s", rates[1], "tar + sync", ratio, 1.0))
