"""Random folders and their mounts: any sequence of calls has the same results on both, in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mount_model
import pytest
from mounting import Mounts

import fffs

pytestmark = pytest.mark.fuse

# scripts/soak --examples sets more.
EXAMPLES = int(os.environ.get("FFFS_MODEL_EXAMPLES", "1000"))
TREES, PROCESSES = 3, 4


def test_random_calls_have_the_results_of_the_plain_folder(tmp_path: Path, mounts: Mounts) -> None:
    folder = tmp_path / "up" / "and up"  # links may lead to parents, which must not change
    folder.mkdir(parents=True)
    pairs = []
    for seed in range(TREES):
        plain = mount_model.grow(folder / f"plain{seed}", seed)
        fffs.pack_folder(plain, tmp_path / f"{seed}.ffr")
        (folder / f"mounted{seed}").mkdir()
        at = folder / f"mounted{seed}"
        pairs.append(f"{plain}:{mounts(tmp_path / f'{seed}.ffr', at=at, xattr=seed == 0)}")
    running = []
    for k in range(PROCESSES):
        command = [sys.executable, mount_model.__file__, *pairs, f"--examples={k}:{EXAMPLES}:{PROCESSES}"]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    texts = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, "\n".join(texts)


def test_a_difference_would_be_found(tmp_path: Path) -> None:
    """Tests the comparison itself, with folders that are equal, or differ in one bit, time, mode, name or link."""

    def copy_with(change: str) -> Path:
        other = tmp_path / change
        subprocess.run(["cp", "-a", tmp_path / "plain", other], check=True)
        first = other / "first"
        data, status = first.read_bytes(), first.stat()
        if change == "bit":
            first.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        elif change == "mode":
            first.chmod(status.st_mode ^ 0o1)
        elif change == "name":
            first = first.rename(other / "First")
        elif change == "link":
            os.link(first, other / "another")
        os.utime(first, ns=(0, status.st_mtime_ns + (change == "time")))
        os.utime(other, ns=(0, (tmp_path / "plain").stat().st_mtime_ns))
        return other

    plain = os.fsencode(mount_model.grow(tmp_path / "plain", 1))
    assert mount_model.compare([(plain, os.fsencode(copy_with("nothing")))], range(300)) == ""
    for change in ("bit", "mode", "name", "link", "time"):
        found = mount_model.compare([(plain, os.fsencode(copy_with(change)))], range(3000))
        assert "Difference" in found, change
