"""``unpack``: a pack of very many tiny files into a folder, against ``tar xf`` followed by ``sync`` of the file system.

fffs syncs the file system as well before the folder gets its name.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
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
    folders, rounds = (20, 3) if quick else (1000, 3)
    folder = data.tiny_folder(scratch, folders, 1000)
    with tempfile.TemporaryDirectory(dir=scratch) as room:
        pack, archive, target = Path(room, "p.ffr"), Path(room, "p.tar"), Path(room, "target")
        subprocess.run([*FFFS, "pack", "--quiet", folder, pack], check=True)
        subprocess.run(["tar", "cf", archive, "-C", folder, "."], check=True)

        def prepare() -> None:
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run(["sync", "-f", room], check=True)
            for source in (pack, archive):
                page_cache.warm(source)
            page_cache.have_memory(8192 * 1000 * folders)  # a page and an inode of each file

        taken = in_turns(partial(_unpack, pack, target), partial(_untar, archive, target), prepare, "unpacking", rounds)
        prepare()
    rates = [1000 * folders / statistics.median(times) for times in taken]
    what = f"{1000 * folders:,} files of 16 bytes, durably"
    report.add(Figure("unpack", what, rates[0], "files/s", rates[1], "tar + sync", paired_ratio(*reversed(taken)), 1.0))
