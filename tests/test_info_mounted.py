"""``fffs info`` of a file in a mount: where its bytes come from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frame_files import TFRECORD
from golden_files import Golden
from mounting import Mounts, pack_files, run_fffs

import fffs
from fffs.errors import MountError

pytestmark = pytest.mark.fuse


def info(path: Path | str, *arguments: str, **options: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "fffs", "info", "--json", *arguments, path]
    return json.loads(subprocess.check_output(command, timeout=60, **options))  # type: ignore[no-any-return]


def test_info_of_a_file_in_a_mount(tmp_path: Path, mounts: Mounts) -> None:
    source = pack_files(tmp_path / "folder", a=b"first", **{"sub/b": b"second"})
    mounted = mounts(source)
    (mounted / "link").exists()
    with fffs.PackedFolder(source) as folder:
        checksums = folder.reader.get_checksums()
    expected = {"mount": str(mounted), "kind": "file", "crc32": f"{checksums[1]:08x}", "record": "1"}
    expected |= {"source": str(source), "verified": "no"}
    assert info(mounted / "sub/b") == expected
    (mounted / "sub/b").read_bytes()
    assert info(mounted / "sub/b") == expected | {"verified": "yes"}
    assert info("b", cwd=mounted / "sub") == expected | {"verified": "yes"}
    assert info(mounted / "sub") == {"mount": str(mounted), "kind": "folder"}
    assert info(mounted) == info(".", cwd=mounted) == {"mount": str(mounted), "kind": "folder", "source": str(source)}
    text = subprocess.check_output([sys.executable, "-m", "fffs", "info", mounted / "a"], text=True)
    assert "record:             0\n" in text and f"source:             {source}\n" in text


def test_info_of_several_files_in_mounts(tmp_path: Path, mounts: Mounts) -> None:
    """They are no record files, of which several would be shown as one source."""
    mounted = mounts(pack_files(tmp_path / "folder", a=b"first", b=b"second"))
    command = [sys.executable, "-m", "fffs", "info", mounted / "a", mounted / "b"]
    found = json.loads(subprocess.check_output([*command, "--json"], timeout=60))
    assert [(facts["path"], facts["record"]) for facts in found] == [(f"{mounted}/a", "0"), (f"{mounted}/b", "1")]
    text = subprocess.check_output(command, text=True, timeout=60)
    assert text.count("\n\n") == 1 and text.count("record: ") == 2
    with open(tmp_path / "c", "wb") as file:
        file.write(b"not a record file")
    assert "a: not a record file, or " in run_fffs("info", mounted / "a", tmp_path / "c", code=4)


def test_names_of_all_bytes_and_lengths(tmp_path: Path, mounts: Mounts) -> None:
    names = [b"n" * 255, b"\xff\xfe", b"a\nb", b"with space"]
    folder = os.fsencode(tmp_path / "folder")
    os.mkdir(folder)
    for name in names:
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(name)
    fffs.pack_folder(folder, tmp_path / "p.ffr")
    mounted = mounts(tmp_path / "p.ffr")
    for record, name in enumerate(sorted(names)):
        assert info(os.path.join(mounted, os.fsdecode(name)))["record"] == str(record)


def test_links_are_followed_and_a_source_in_a_mount_is_a_file_of_it(
    golden: Golden, tmp_path: Path, mounts: Mounts
) -> None:
    inner = golden.path("mixed-100.ffr").read_bytes()
    source = pack_files(tmp_path / "folder", **{"inner.ffr": inner})
    mounted = mounts(source)
    (tmp_path / "link").symlink_to(mounted / "inner.ffr")
    assert info(tmp_path / "link")["record"] == "0"
    assert info(tmp_path / "link", "--format", "ffrecord")["records"] == 100


def test_each_format_says_its_checksum(tmp_path: Path, mounts: Mounts) -> None:
    path = TFRECORD.path("raw.tfrecord")
    row = TFRECORD.files["raw.tfrecord"]["records"][2]
    assert info(mounts(path) / "000002")["crc32c"] == row["crc32c"]
    mounted = mounts(path, decode=True) if "example" in path.name else mounts(TFRECORD.path("shards"), decode=True)
    mounts.daemon.expect("without the fast path: its threads serve trees only")
    found = info(mounted / "000005" / "name")
    assert found["record"] == "1" and found == info(mounted / "000005") | {"kind": "file"}


def test_info_where_there_is_nothing(tmp_path: Path, mounts: Mounts) -> None:
    mounted = mounts(pack_files(tmp_path / "folder", a=b"first"))
    assert "no such file" in run_fffs("info", mounted / "none", code=3).lower()


def test_a_daemon_that_is_gone_or_stopped(tmp_path: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    from inside import info_command as command

    mounted = mounts(pack_files(tmp_path / "folder", a=b"first"))
    monkeypatch.setattr(command, "ASK_SECONDS", 0.2)
    mounts.daemon.kill(signal.SIGSTOP)
    try:
        with pytest.raises(MountError, match="does not answer"):
            command.describe_mounted(mounted)
    finally:
        mounts.daemon.kill(signal.SIGCONT)
    mounts.daemon.kill()
    assert mounts.daemon.wait()
    assert "Transport endpoint" in run_fffs("info", mounted, code=MountError.exit_code)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
def test_info_in_a_container(tmp_path: Path, mounts: Mounts) -> None:
    """In other namespaces, where the folder is bound to another place, the daemon can be asked as well."""
    mounted = mounts(pack_files(tmp_path / "folder", a=b"first"))
    (tmp_path / "data").mkdir()
    script = f"mount --bind {mounted} {tmp_path}/data && {sys.executable} -m fffs info --json {tmp_path}/data/a"
    found = subprocess.check_output(
        ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "sh", "-c", script]
    )
    assert json.loads(found)["record"] == "0" and json.loads(found)["mount"] == f"{tmp_path}/data"
    script = script.replace("info --json", "stat --json").replace("/data/a", "/data")
    found = subprocess.check_output(
        ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "sh", "-c", script]
    )
    assert json.loads(found)["records"] >= 1
