"""unpack on file systems that limit hard links: it makes few copies, and warns once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inside import unpack

import fffs
from fffs.errors import UnsupportedError

LIMIT = 4
CONTENT = b"content" * 100


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A file with eleven names in two folders, and a symbolic link with three."""
    folder = tmp_path / "f"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(CONTENT)
    (folder / "link").symlink_to("a")
    for k in range(5):
        (folder / f"b{k}").hardlink_to(folder / "a")
        (folder / "sub" / f"c{k}").hardlink_to(folder / "a")
    for k in range(2):
        os.link(folder / "link", folder / f"link{k}", follow_symlinks=False)
    (folder / "other").write_bytes(bytes(11 * len(CONTENT)))  # gives room for as many copies
    fffs.pack_folder(folder, tmp_path / "p.ffr")
    return tmp_path / "p.ffr"


def failing(number: int, limit: int) -> Callable[..., None]:
    """Return link(2) of a file system that allows that many names of a file."""
    original = os.link

    def link(old: bytes, new: bytes, *, src_dir_fd: int, **options: Any) -> None:
        if os.stat(old, dir_fd=src_dir_fd, follow_symlinks=False).st_nlink >= limit:
            raise OSError(number, os.strerror(number))
        original(old, new, src_dir_fd=src_dir_fd, **options)

    return link


def names_by_inode(folder: Path) -> list[int]:
    """Return how many names each file has, largest first."""
    counts: dict[int, int] = {}
    for path in folder.rglob("*"):
        if not path.is_dir() and path.name != "other":
            counts[path.lstat().st_ino] = counts.get(path.lstat().st_ino, 0) + 1
    return sorted(counts.values(), reverse=True)


@pytest.mark.parametrize(
    ("number", "limit", "copies", "expected"),
    [
        (errno.EMLINK, LIMIT, 2, [4, 4, 3, 3]),
        (errno.EPERM, 1, 12, [1] * 14),
        (errno.EOPNOTSUPP, 1, 12, [1] * 14),
        (errno.ENOSYS, 1, 12, [1] * 14),
    ],
)
def test_where_no_hard_link_can_be_made_there_are_copies_and_one_warning(
    number: int, limit: int, copies: int, expected: list[int], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = pack.with_name("target")
    warnings: list[str] = []
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "link", failing(number, limit))
    unpack(pack, target, warn=warnings.append, progress=lambda *step: done.append(step))
    assert warnings == [f"{target}: {copies} files copied where no hard link could be made ({os.strerror(number)})"]
    assert names_by_inode(target) == expected
    for path in (target / "a").parent.rglob("[abc]*"):
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (CONTENT, (pack.parent / "f/a").stat().st_mtime_ns)
    assert {os.readlink(target / name) for name in ("link", "link0", "link1")} == {"a"}
    assert max(done) == (12 * len(CONTENT), 12 * len(CONTENT))


@pytest.mark.parametrize(("number", "limit"), [(errno.EPERM, 1), (errno.EMLINK, 2)])
def test_copies_in_place_of_links_are_never_more_than_the_pack(
    number: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(bytes(1 << 20))
    for k in range(7):
        (tmp_path / "f" / f"b{k}").hardlink_to(tmp_path / "f" / "a")
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    written: list[int] = []
    monkeypatch.setattr(os, "link", failing(number, limit))
    with pytest.raises(UnsupportedError, match=r"target: not unpacked: this file system cannot make all hard"):
        unpack(tmp_path / "p.ffr", tmp_path / "target", progress=lambda done, _: written.append(done))
    assert sorted(os.listdir(tmp_path)) == ["f", "p.ffr"]
    assert (written == []) == (limit == 1), "how many are too many is only seen when it happens"


def test_the_copy_of_a_record_that_is_bad_by_then_is_left_out_like_any_other(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bytearray(pack.read_bytes())
    damaged[damaged.index(CONTENT)] ^= 1
    left_out: list[str] = []

    def damage(error: Callable[..., None]) -> Callable[..., None]:
        def link(*arguments: Any, **options: Any) -> None:
            pack.write_bytes(damaged)
            error(*arguments, **options)

        return link

    monkeypatch.setattr(os, "link", damage(failing(errno.EMLINK, LIMIT)))
    target = pack.with_name("target")
    unpack(pack, target, leave_out=lambda path, _: left_out.append(os.path.basename(path)), warn=lambda _: None)
    assert {path.name for path in target.rglob("*") if path.is_file() and path.name in ("a", "b0", "b1", "b2")}
    assert sorted(left_out) == ["b3", "b4", *(f"c{k}" for k in range(5))]
