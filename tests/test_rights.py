"""Rights of written files: a new file that replaces another one, or is beside it, is open to no other users."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import btrfs
from inside import AtomicFile, dump, sidecars

import fffs
from fffs.errors import UsageError
from fffs.granular import BagWriter, DatasetWriter
from fffs.tfrecord import TFRecordWriter

ACL = "system.posix_acl_access"
STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


def write(path: Path) -> None:
    with fffs.FileWriter(path, 1) as writer:
        writer.write_one(b"record")


def pack(path: Path) -> None:
    path.with_name("f").mkdir(exist_ok=True)
    fffs.pack_folder(path.with_name("f"), path)


def write_bag(path: Path) -> None:
    with BagWriter(path) as writer:
        writer.append(b"record")


def write_tfrecord(path: Path) -> None:
    with TFRecordWriter(path) as writer:
        writer.write_one(b"record")


def convert(path: Path) -> None:
    write_tfrecord(path.with_name("source.tfrecord"))
    fffs.convert(path.with_name("source.tfrecord"), path, force=True, verify=True)


def convert_to_two_files(path: Path) -> None:
    write_tfrecord(path.with_name("source.tfrecord"))
    fffs.convert(path.with_name("source.tfrecord"), path, force=True, verify=True, layout="v3")


WRITERS: dict[str, list[Callable[[Path], None]]] = {
    "x.ffr": [write, pack, convert],
    "x.bag": [write_bag, convert, convert_to_two_files],
    "x.tfrecord": [write_tfrecord],
}
EVERY_WRITER = [(name, writer) for name, writers in WRITERS.items() for writer in writers]


@pytest.mark.parametrize(("name", "writer"), EVERY_WRITER)
@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o666, 0o444])
def test_a_file_that_replaces_another_can_be_read_by_whoever_could_read_that(
    name: str, writer: Callable[[Path], None], permissions: int, tmp_path: Path
) -> None:
    writer(tmp_path / name)
    assert mode(tmp_path / name) == 0o644
    (tmp_path / name).chmod(permissions)
    inode = (tmp_path / name).stat().st_ino
    writer(tmp_path / name)
    assert mode(tmp_path / name) == permissions
    assert (tmp_path / name).stat().st_ino != inode


def test_the_table_beside_a_bag_is_not_open_to_more_than_the_bag(tmp_path: Path) -> None:
    write_bag(tmp_path / "x.bag")
    (tmp_path / "x.bag").chmod(0o600)
    convert_to_two_files(tmp_path / "x.bag")
    assert mode(tmp_path / "x.idx") == 0o600
    (tmp_path / "y.bag").touch(0o600)
    with BagWriter(tmp_path / "y.bag", "v3"):
        assert mode(tmp_path / "y.idx") == 0o600


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o666])
def test_checksums_beside_a_file_can_be_read_by_whoever_can_read_that(permissions: int, tmp_path: Path) -> None:
    write_bag(tmp_path / "x.bag")
    (tmp_path / "x.bag").chmod(permissions)
    for old in (None, b"stale"):
        if old is not None:
            (tmp_path / "x.bag.fffs-crc").write_bytes(old)
            (tmp_path / "x.bag.fffs-crc").chmod(0o644)
        assert sidecars.keep_checksums(tmp_path / "x.bag")
        assert mode(tmp_path / "x.bag.fffs-crc") == permissions


def test_special_bits_of_what_is_replaced_are_not_given_to_other_content(tmp_path: Path) -> None:
    (tmp_path / "x.ffr").touch()
    (tmp_path / "x.ffr").chmod(0o7711)
    write(tmp_path / "x.ffr")
    assert mode(tmp_path / "x.ffr") == 0o711


@as_root
def test_owner_and_group_are_kept_where_we_may(tmp_path: Path) -> None:
    write(tmp_path / "x.ffr")
    os.chown(tmp_path / "x.ffr", STRANGER, STRANGER + 1)
    write(tmp_path / "x.ffr")
    status = (tmp_path / "x.ffr").stat()
    assert (status.st_uid, status.st_gid) == (STRANGER, STRANGER + 1)


@as_root
@pytest.mark.parametrize(("before", "after"), [(0o640, 0o600), (0o664, 0o644), (0o604, 0o600), (0o666, 0o666)])
def test_a_group_that_cannot_be_kept_does_not_widen_who_may_read(
    before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    write(tmp_path / "x.ffr")
    os.chown(tmp_path / "x.ffr", -1, STRANGER)
    (tmp_path / "x.ffr").chmod(before)
    monkeypatch.setattr(os, "fchown", refused)
    write(tmp_path / "x.ffr")
    assert mode(tmp_path / "x.ffr") == after


@as_root
@pytest.mark.parametrize("owner", [STRANGER, 0], ids=["the stranger's", "ours, renamed or linked there"])
@pytest.mark.parametrize(("folder_owner", "folder_mode"), [(0, 0o1777), (0, 0o777), (0, 0o770), (STRANGER, 0o755)])
def test_what_a_stranger_put_there_neither_opens_a_file_nor_takes_it(
    folder_owner: int, folder_mode: int, owner: int, tmp_path: Path
) -> None:
    """The folder is one in which other users may write, such as /tmp or a folder of another user."""
    tmp_path.chmod(folder_mode)
    os.chown(tmp_path, folder_owner, -1)
    (tmp_path / "x.ffr").touch()
    for planted, expected in ((0o666, 0o600), (0o044, 0o600)):
        (tmp_path / "x.ffr").chmod(planted)
        os.chown(tmp_path / "x.ffr", owner, owner)
        os.umask(0o077)
        write(tmp_path / "x.ffr")
        assert mode(tmp_path / "x.ffr") == expected
        assert (tmp_path / "x.ffr").stat().st_uid == os.geteuid()


@as_root
@pytest.mark.parametrize(("before", "after"), [(0o640, 0o600), (0o644, 0o644), (0o664, 0o644), (0o604, 0o600)])
def test_in_a_shared_folder_another_group_gets_only_what_all_had(before: int, after: int, tmp_path: Path) -> None:
    """New files in the folder get its group."""
    write(tmp_path / "x.ffr")
    os.chown(tmp_path / "x.ffr", -1, STRANGER)
    (tmp_path / "x.ffr").chmod(before)
    tmp_path.chmod(0o2775)
    write(tmp_path / "x.ffr")
    assert mode(tmp_path / "x.ffr") == after


def unpack(path: Path) -> None:
    folder = path.with_name("folder")
    folder.mkdir()
    folder.chmod(0o1755)
    fffs.pack_folder(folder, path.with_name("p.ffr"))
    fffs.unpack(path.with_name("p.ffr"), path)


def write_data_set(path: Path) -> None:
    with DatasetWriter(path, {"x": "bytes"}) as writer:
        writer.append({"x": b"record"})


def convert_to_parts(path: Path) -> None:
    write_tfrecord(path.with_name("source.tfrecord"))
    fffs.convert(path.with_name("source.tfrecord"), path, parts=1, to="ffrecord")


def dump_parts(path: Path) -> None:
    dump([b"record"] * 2, path, 2)


FILLING = [unpack, write_data_set, convert_to_parts, dump_parts]


@pytest.mark.parametrize("fill", FILLING)
def test_an_empty_folder_that_is_filled_is_opened_to_nobody_else(fill: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir(mode=0o700)
    fill(tmp_path / "x")
    assert mode(tmp_path / "x") == (0o1700 if fill is unpack else 0o700)


def set_list(name: str) -> Callable[[Path], None]:
    return lambda path: os.setxattr(path, f"system.posix_acl_{name}", access_list(7, 7))


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NODUMP_FL = 0x80086601, 0x40086602, 0x40  # <linux/fs.h>


def set_flag(path: Path, flag: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = bytearray(8)
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, flags)
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, bytes([flags[0] | flag]) + bytes(flags[1:]))
    finally:
        os.close(fd)


PREPARED: dict[str, Callable[[Path], None]] = {
    "owner or group": lambda path: os.chown(path, STRANGER, -1),
    "owner or group ": lambda path: os.chown(path, -1, STRANGER),
    "set-group-ID": lambda path: path.chmod(0o2770),
    "sticky": lambda path: path.chmod(0o1777),
    "access control lists": set_list("default"),
    "access control lists ": set_list("access"),
    "extended attributes": lambda path: os.setxattr(path, "user.note", b"of a user"),
    "other flags of chattr": lambda path: set_flag(path, FS_NODUMP_FL),
}


@pytest.mark.parametrize("fill", FILLING)
@pytest.mark.parametrize("prepared", PREPARED)
def test_an_empty_folder_that_would_lose_what_it_was_given_is_not_replaced(
    prepared: str, fill: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "x"
    path.mkdir()
    try:
        PREPARED[prepared](path)
    except OSError:
        pytest.skip("not permitted here, or not with this file system")
    before = path.stat()
    with pytest.raises(UsageError, match=rf"x: .*{prepared.strip()}.*; remove it, or name a new folder in it$"):
        fill(path)
    after = path.stat()
    assert (*after[:7], after.st_mtime_ns, after.st_ctime_ns) == (*before[:7], before.st_mtime_ns, before.st_ctime_ns)
    assert not list(path.iterdir())
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_is_not_replaced_is_refused_before_the_work(tmp_path: Path) -> None:
    class Items(list[bytes]):
        def __getitem__(self, index: Any) -> Any:
            pytest.fail("the work has begun")

    (tmp_path / "x").mkdir()
    (tmp_path / "x").chmod(0o1777)
    with pytest.raises(UsageError, match="sticky"):
        dump(Items([b"record"] * 2), tmp_path / "x", 2)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_an_empty_folder_that_is_locked_is_not_replaced(tmp_path: Path, when: str) -> None:
    """As daemons lock mount points that they created, which may have mounts in other mount namespaces."""
    (tmp_path / "x").mkdir()
    locked = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        if when == "before":
            fcntl.flock(locked, fcntl.LOCK_SH)
            with pytest.raises(UsageError, match="x: this empty folder is locked"):
                DatasetWriter(tmp_path / "x", {"x": "bytes"})
        else:
            writer = DatasetWriter(tmp_path / "x", {"x": "bytes"})
            fcntl.flock(locked, fcntl.LOCK_SH)
            with pytest.raises(UsageError, match="x: this empty folder is locked"):
                writer.close()
    finally:
        os.close(locked)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("fill", FILLING)
def test_an_empty_subvolume_is_refused_before_any_work(fill: Callable[[Path], None], tmp_path: Path) -> None:
    with btrfs(tmp_path / "disk") as disk:
        subprocess.run(["btrfs", "subvolume", "create", disk / "x"], capture_output=True, check=True)
        with pytest.raises(UsageError, match="this empty folder would lose its subvolume; remove it, or name a new"):
            fill(disk / "x")
        assert not [*disk.glob(".*"), *(disk / "x").iterdir()]


@pytest.mark.parametrize("fill", FILLING)
def test_an_empty_folder_with_what_it_inherited_is_replaced(fill: Callable[[Path], None], tmp_path: Path) -> None:
    set_list("default")(tmp_path)
    if os.geteuid() == 0:
        os.chown(tmp_path, -1, STRANGER)
    tmp_path.chmod(0o2755)
    (tmp_path / "x").mkdir()
    before = (tmp_path / "x").stat()
    lists = {name: os.getxattr(tmp_path / "x", name) for name in os.listxattr(tmp_path / "x")}
    assert len(lists) == 2
    fill(tmp_path / "x")
    after = (tmp_path / "x").stat()
    assert (tmp_path / "x").exists() and after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert mode(tmp_path / "x") & ~0o1000 == stat.S_IMODE(before.st_mode) & (~0o020 if fill is unpack else -1)
    assert set(os.listxattr(tmp_path / "x")) == set(lists)


def access_list(group: int, mask: int) -> bytes:
    """Return an access list with rw for the owner and for another user, limited by the mask."""
    anybody = 0xFFFFFFFF
    entries = [(1, 6, anybody), (2, 6, STRANGER), (4, group, anybody), (16, mask, anybody), (32, 0, anybody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_a_list_of_who_may_read_is_kept_and_its_mask_given_to_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.ffr"
    write(path)
    os.setxattr(path, ACL, access_list(0, 6))
    assert mode(path) == 0o660
    write(path)
    assert os.getxattr(path, ACL) == access_list(0, 6)

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setxattr", refused)
    write(path)
    assert mode(path) == 0o600


def test_the_list_of_the_folder_opens_no_file_that_had_none(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    write(path)
    path.chmod(0o660)
    os.setxattr(tmp_path, "system.posix_acl_default", access_list(0, 6))
    write(path)
    assert ACL not in os.listxattr(path)
    assert mode(path) == 0o660


@pytest.mark.parametrize("others", [0, 4])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_list_of_a_folder_is_inherited_as_open_and_mkdir_do(tmp_path: Path, others: int, umask: int) -> None:
    """The umask does not count there: the group keeps its right to write, and others get none that the list denies."""
    anybody = 0xFFFFFFFF
    entries = [(1, 7, anybody), (2, 6, STRANGER), (4, 5, anybody), (16, 7, anybody), (32, others, anybody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(tmp_path, "system.posix_acl_default", acl)
    os.umask(umask)
    (tmp_path / "file").touch(0o666)
    (tmp_path / "folder").mkdir(0o777)
    write(tmp_path / "x.ffr")
    dump([b"record"] * 2, tmp_path / "parts", 2)
    for usual, ours in (("file", "x.ffr"), ("folder", "parts"), ("file", "parts/PART_00000.ffr")):
        assert mode(tmp_path / ours) == mode(tmp_path / usual), ours
        assert os.getxattr(tmp_path / ours, ACL) == os.getxattr(tmp_path / usual, ACL), ours


def test_a_short_list_of_a_folder_is_inherited_as_modes(tmp_path: Path) -> None:
    anybody = 0xFFFFFFFF
    entries = [(1, 6, anybody), (4, 6, anybody), (32, 0, anybody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(tmp_path, "system.posix_acl_default", acl)
    write(tmp_path / "x.ffr")
    assert mode(tmp_path / "x.ffr") == 0o660
    assert ACL not in os.listxattr(tmp_path / "x.ffr")


def test_a_link_that_is_replaced_gives_no_rights(tmp_path: Path) -> None:
    (tmp_path / "private").touch(0o600)
    (tmp_path / "x.ffr").symlink_to("private")
    write(tmp_path / "x.ffr")
    assert mode(tmp_path / "x.ffr") == 0o644
    assert mode(tmp_path / "private") == 0o600


def test_rights_that_change_while_a_file_is_written_are_those_that_count(tmp_path: Path) -> None:
    write(tmp_path / "x.ffr")
    with AtomicFile(tmp_path / "x.ffr") as file:
        (tmp_path / "x.ffr").chmod(0o600)
        file.commit()
    assert mode(tmp_path / "x.ffr") == 0o600


def test_an_empty_folder_that_is_filled_stays_as_private_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir(0o700)
    dump([b"record"] * 2, tmp_path / "parts", 2)
    assert mode(tmp_path / "parts") == 0o700


def test_the_name_of_a_process_forges_no_umask() -> None:
    """The name is in the first line of /proc/self/status, in which only a newline ends a line."""
    code = (
        "import os\n"
        "from fffs.files.rights import new_mode\n"
        "with open('/proc/self/comm', 'wb') as comm:\n"
        "    comm.write(b'a\\rUmask: 0')\n"
        "print(b'a\\rUmask: 0\\n' in open('/proc/self/status', 'rb').read())\n"
        "print(oct(new_mode(0o666, os.open('/', os.O_RDONLY))))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, umask=0o027).stdout
    assert said == "True\n0o640\n"


def test_what_may_not_be_opened_has_its_group_bits_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an access control list they are the rights of the group; this is known without opening the file."""
    write(tmp_path / "x.ffr")
    (tmp_path / "x.ffr").chmod(0o664)
    opened = os.open

    def refused(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == b"x.ffr":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, flags, mode, dir_fd=dir_fd)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refused)
    write(tmp_path / "x.ffr")
    assert mode(tmp_path / "x.ffr") == 0o664


def make_data_set(path: Path, layout: str) -> None:
    with DatasetWriter(path, {"x": "bytes"}, layout=layout) as writer:
        writer.append({"x": b"record"})


def make_parts(path: Path, layout: str) -> None:
    write_tfrecord(path.with_name("source.tfrecord"))
    fffs.convert(path.with_name("source.tfrecord"), path, parts=1, to="granular", layout=layout)


@pytest.mark.parametrize("make", [make_data_set, make_parts])
@pytest.mark.parametrize("layout", ["v1", "v3"])
@pytest.mark.parametrize("there", [False, True])
def test_a_new_folder_in_one_of_a_group_belongs_to_that_group(
    tmp_path: Path, make: Callable[[Path, str], None], layout: str, there: bool
) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, -1, STRANGER)
    tmp_path.chmod(0o2755)
    if there:
        (tmp_path / "x").mkdir()
    make(tmp_path / "x", layout)
    assert mode(tmp_path / "x") == 0o2755
    made = [tmp_path / "x", *(tmp_path / "x").iterdir()]
    assert len(made) > 1 and {file.stat().st_gid for file in made} == {tmp_path.stat().st_gid}
