"""``fffs stat``: the counters of a mount, once and repeatedly, and errors without a mount."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inside import ANSWERS_KEPT, BUCKETS, DAEMON_QUESTION, ENTRY_QUESTION, STAT_QUESTION, bucket, percentile
from mounting import Mounts, answer_of, counters_of, libc, run_fffs, wait_until

import fffs
from fffs.errors import DeadMountError, MountError
from fffs.mount import umount

pytestmark = pytest.mark.fuse
NOBODY = 65534


@pytest.fixture
def mounted(tmp_path: Path, mounts: Mounts) -> Path:
    """A mount of ten files of 5,000 bytes, of which the last is damaged."""
    (tmp_path / "folder").mkdir()
    for k in range(10):
        (tmp_path / "folder" / f"{k}").write_bytes(bytes([65 + k]) * 5000)
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    data = tmp_path.joinpath("p.ffr").read_bytes()
    with open(tmp_path / "p.ffr", "r+b") as file:
        file.seek(data.index(b"J" * 5000))
        file.write(b"x")
    return mounts(tmp_path / "p.ffr")


def stat(path: Path, *arguments: str) -> str:
    return subprocess.check_output([sys.executable, "-m", "fffs", "stat", *arguments, path], text=True, timeout=60)


def counters(path: Path) -> dict[str, Any]:
    return json.loads(stat(path, "--json"))  # type: ignore[no-any-return]


def test_every_request_and_byte_is_counted(mounted: Path, mounts: Mounts) -> None:
    before = counters(mounted)
    assert before["fastpath"] == mounts.fastpath and before["records"] >= 10
    assert (before["reads"], before["read_bytes"], before["verified_records"]) == (0, 0, 0)
    assert before["read_latency_ns"] == {"p50": None, "p90": None, "p99": None, "p99.9": None}
    for k in range(7):
        (mounted / f"{k}").read_bytes()
    (mounted / "none").exists()
    os.statvfs(mounted)
    with pytest.raises(OSError, match="not supported"):
        os.getxattr(mounted / "0", "user.fffs.crc32")
    after = counters(mounted)
    side, other = ("native", "python") if mounts.fastpath else ("python", "native")
    assert after[side]["lookup"] - before[side]["lookup"] == 8
    assert after[side]["read"] == after["reads"] == 7 == sum(after["read_latency_log2_ns"])
    assert after[other]["read"] == after[other]["lookup"] == 0
    assert (after["read_bytes"], after["verified_records"], after["bad_records"]) == (35_000, 7, 0)
    assert after["python"]["statfs"] == before["python"]["statfs"] + 1
    assert after["python"]["getxattr"] > before["python"]["getxattr"]
    assert 0 < after["read_latency_ns"]["p50"] <= after["read_latency_ns"]["p99.9"]
    assert after["seconds"] > before["seconds"]


@pytest.mark.parametrize("align", [False, True])
def test_only_records_that_were_read_are_verified_of_those_that_can_be(
    align: bool, tmp_path: Path, mounts: Mounts
) -> None:
    """Nothing is read of empty records, nor of trees and the padding of aligned packs."""
    (tmp_path / "folder").mkdir()
    for size in (0, 100, 512, 600):
        (tmp_path / "folder" / f"{size}").write_bytes(b"x" * size)
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr", align=align)
    mounted = mounts(tmp_path / "p.ffr")
    for k, size in enumerate((0, 100, 512, 600)):
        (mounted / f"{size}").read_bytes()
        found = counters(mounted)
        assert (found["verified_records"], found["records"]) == (k, 3)


def test_bad_records_are_counted(mounted: Path, mounts: Mounts) -> None:
    mounts.daemon.expect("9: .*record|reads failed, of 1 records")
    for _ in range(2):
        with pytest.raises(OSError):
            (mounted / "9").read_bytes()
    wait_until(lambda: counters(mounted)["bad_records"] == 1)
    assert counters(mounted)["read_errors"] >= 2 and counters(mounted)["verified_records"] == 0
    assert re.search(r"^bad records +1$", stat(mounted), re.M)


def test_the_text_says_what_was_done(mounted: Path, mounts: Mounts) -> None:
    assert "no reads yet" in stat(mounted)
    (mounted / "3").read_bytes()
    text = stat(mounted)
    assert ("with the fast path (2 threads)" if mounts.fastpath else "without the fast path\n") in text.replace(
        f"({counters(mounted)['threads']} threads)", "(2 threads)"
    )
    assert re.search(r"^reads +1 of 5.0 KB, 0 failed$", text, re.M)
    assert re.search(r"^verified +1 of \d+ records$", text, re.M)
    assert re.search(r"^read latency +p50 [\d.]+ [mu]?s, p90", text, re.M)
    native, python = re.search(r"^  read +(\d+) +(\d+)$", text, re.M).groups()  # type: ignore[union-attr]
    assert (native, python) == (("1", "0") if mounts.fastpath else ("0", "1"))


def test_a_question_is_no_file(mounted: Path) -> None:
    """Questions are in no listing, and mean nothing in other folders or in other words."""
    assert sorted(os.listdir(mounted)) == [f"{k}" for k in range(10)]
    assert counters_of(mounted)["records"]
    for question, number in (
        (STAT_QUESTION + b"x", errno.ENAMETOOLONG),
        (STAT_QUESTION[1:], errno.ENAMETOOLONG),
        (ENTRY_QUESTION + b"none", errno.ENOENT),
        (ENTRY_QUESTION + b"n" * 256, errno.ENOENT),
        (b"0/" + DAEMON_QUESTION, errno.ENOTDIR),
        (DAEMON_QUESTION + b"/0", errno.ENOTDIR),
    ):
        with pytest.raises(OSError) as caught:
            answer_of(mounted, question)
        assert caught.value.errno == number, question


def test_an_answer_stays_as_it_was_given(mounted: Path) -> None:
    """Each answer is a file of its own; the oldest become stale when many are open."""
    first = os.open(os.fsencode(mounted) + b"/" + STAT_QUESTION, os.O_RDONLY)
    (mounted / "1").read_bytes()
    assert counters_of(mounted)["reads"] == 1
    assert json.loads(os.pread(first, 1 << 16, 0))["reads"] == 0
    size = os.fstat(first).st_size
    assert os.pread(first, 100, size) == b"" and len(os.pread(first, 100, size - 10)) == 10
    unread = os.open(os.fsencode(mounted) + b"/" + STAT_QUESTION, os.O_RDONLY)
    later = [os.open(os.fsencode(mounted) + b"/" + DAEMON_QUESTION, os.O_RDONLY) for _ in range(ANSWERS_KEPT)]
    assert os.pread(later[-1], 5, 0)
    with pytest.raises(OSError) as caught:
        os.pread(unread, 5, 0)
    assert caught.value.errno == errno.ESTALE
    for fd in (first, unread, *later):
        os.close(fd)


class Watching:
    """``fffs stat --watch`` in a process."""

    def __init__(self, path: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "fffs", "stat", "--watch", "--interval=0.05", *arguments, str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> tuple[int, str]:
        """Return the exit code and stderr."""
        errors = self.process.communicate(timeout=60)[1]
        return self.process.returncode, errors


def test_watching_shows_what_changes_until_ctrl_c(mounted: Path) -> None:
    watching = Watching(mounted)
    assert "requests/s" in watching.line() and "verified" not in watching.line()
    (mounted / "1").read_bytes()
    wait_until(lambda: watching.line().split()[-1] == "1")
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == (130, "fffs: interrupted\n")


def test_watching_ends_when_it_is_unmounted(mounted: Path) -> None:
    watching = Watching(mounted)
    watching.line()
    subprocess.run(["umount", "--lazy", mounted], check=True)
    assert watching.end() == (0, "")


def test_watching_a_mount_whose_daemon_is_killed_is_an_error(mounted: Path, mounts: Mounts) -> None:
    watching = Watching(mounted)
    watching.line()
    mounts.daemon.kill()
    code, errors = watching.end()
    assert code == DeadMountError.exit_code and f"fffs umount {mounted}" in errors


def test_watching_as_json_prints_a_document_per_line(mounted: Path) -> None:
    watching = Watching(mounted, "--json")
    first, second = json.loads(watching.line()), json.loads(watching.line())
    assert second["seconds"] > first["seconds"]
    umount(mounted, lazy=True)
    assert watching.end() == (0, "")


# ---------------------------------------------------------------- errors


def test_what_is_not_a_mount_of_fffs(tmp_path: Path) -> None:
    code = MountError.exit_code
    assert run_fffs("stat", tmp_path, code=code) == f"fffs: {tmp_path}: not a mount point\n"
    assert run_fffs("stat", tmp_path / "none", code=code) == f"fffs: {tmp_path}/none: no such folder\n"
    assert run_fffs("stat", "/proc", code=code) == "fffs: /proc: not an fffs mount, but one of type proc\n"


def test_wrong_intervals_are_refused(tmp_path: Path) -> None:
    for wrong in ("0", "-1", "nan", "x", "1e9"):
        assert "not a number of seconds" in run_fffs("stat", "--watch", f"--interval={wrong}", tmp_path, code=2)


def test_a_dead_mount_is_named(mounted: Path, mounts: Mounts) -> None:
    mounts.daemon.kill()
    assert mounts.daemon.wait()
    text = run_fffs("stat", mounted, code=DeadMountError.exit_code)
    assert text == f"fffs: {mounted}: the daemon of this mount is gone; clean up with: fffs umount {mounted}\n"


def test_a_daemon_that_does_not_answer(mounted: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    from inside import stat_command as command

    monkeypatch.setattr(command, "ASK_SECONDS", 0.2)
    mounts.daemon.kill(signal.SIGSTOP)
    try:
        with pytest.raises(MountError, match="does not answer"):
            command.ask(str(mounted))
    finally:
        mounts.daemon.kill(signal.SIGCONT)


ASK = """
import os, sys
os.setuid(65534)
for question in sys.argv[2:]:
    try:
        with open(os.path.join(sys.argv[1], question)) as answer:
            print(len(answer.read()) > 0)
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_who_may_ask(tmp_path: Path, in_public: Path, mounts: Mounts) -> None:
    """The counters are for who mounted; what a file is made of is for those who may read the file."""
    folder = tmp_path / "folder"
    for name, mode in (("public", 0o644), ("private", 0o600), ("hidden/below", 0o644)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("content")
        (folder / name).chmod(mode)
    (folder / "hidden").chmod(0o700)
    fffs.pack_folder(folder, tmp_path / "p.ffr")
    path = mounts(tmp_path / "p.ffr", at=in_public / "m", allow_other=True, uid=NOBODY)
    questions = [STAT_QUESTION, DAEMON_QUESTION, *(ENTRY_QUESTION + name for name in (b"", b"public", b"private"))]
    below = os.fsdecode(b"hidden/" + ENTRY_QUESTION + b"below")
    assert len(answer_of(path, os.fsencode(below))) > 0
    asked = subprocess.check_output([sys.executable, "-c", ASK, path, *map(os.fsdecode, questions), below], text=True)
    assert asked.split() == ["13", "True", "True", "True", "True", "True"], "uid= makes nobody the owner of the files"
    libc.umount2(os.fsencode(path), 2)
    path = mounts(tmp_path / "p.ffr", at=in_public / "m", allow_other=True)
    asked = subprocess.check_output([sys.executable, "-c", ASK, path, *map(os.fsdecode, questions), below], text=True)
    assert asked.split() == ["13", "True", "True", "True", "13", "13"]
    libc.umount2(os.fsencode(path), 2)


# ---------------------------------------------------------------- latencies


def test_percentiles_of_counts_by_power_of_two() -> None:
    buckets = [0] * BUCKETS
    assert percentile(buckets, 50) is None
    buckets[10] = 4  # 1024 to 2047
    assert percentile(buckets, 0) == 1024 and percentile(buckets, 50) == 1536 and percentile(buckets, 100) == 2048
    buckets[20] = 1
    assert percentile(buckets, 80) == 2048 and (percentile(buckets, 99) or 0) > 2**20
    assert [bucket(value) for value in (0, 1, 2, 3, 1024, 2**70)] == [0, 0, 1, 1, 10, BUCKETS - 1]
