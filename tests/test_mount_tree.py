"""The mounted tree equals the source folder: names, types, contents, modes, times, links."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from golden_files import Golden, sha256
from inside import TreeView
from mounting import Mounts, counters_of, describe, list_from

import fffs
from fffs.mount import MountOptions

pytestmark = pytest.mark.fuse

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="compares with a bind mount, which only root can make")


def make_folder(folder: Path) -> Path:
    """Make a folder with everything that a packed folder stores."""
    (folder / "sub" / "deeper" / "deepest").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    (folder / "empty").touch()
    (folder / "a").write_bytes(b"the first file\n")
    (folder / "sub" / "page").write_bytes(bytes(range(256)) * 16)
    (folder / "sub" / "large").write_bytes(os.urandom(3 * 1024 * 1024 + 17))
    (folder / "sub" / "one block").write_bytes(os.urandom(1024 * 1024))
    (folder / "sub" / "deeper" / "script").write_bytes(b"#!/bin/sh\necho ran\n")
    (folder / "sub" / "deeper" / "script").chmod(0o755)
    (folder / "private").write_bytes(b"secret")
    (folder / "private").chmod(0o600)
    (folder / "link").symlink_to("sub/page")
    (folder / "sub" / "up").symlink_to("../a")
    (folder / "dangling").symlink_to("/nowhere/at/all")
    (folder / "sub" / "folder link").symlink_to("deeper")
    os.link(folder / "a", folder / "sub" / "a again")
    with open(os.fsencode(folder) + b"/not utf-8 \xff\xfe", "wb") as file:
        file.write(b"bytes")
    (folder / ("n" * 255)).write_bytes(b"long name")
    (folder / "sub" / "deeper").chmod(0o1777)
    times = [1, 2**31 + 5, 1_700_000_000_123_456_789, 999_999_999, -1, -1_500_000_000_500_000_000]
    for k, path in enumerate(sorted(folder.rglob("*"))):
        os.utime(path, ns=(0, times[k % len(times)]), follow_symlinks=False)
    os.utime(folder, ns=(0, 1_234_567_890_123_456_789))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("source") / "folder")


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fffs.pack_folder(folder, folder.parent / "packed.ffr")
    return folder.parent / "packed.ffr"


@pytest.fixture(scope="module", params=[False, True], ids=["pyfuse3", "fastpath"])
def mounted(request: pytest.FixtureRequest, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder, packed and mounted, for all tests that do not change the mount."""
    mounts = Mounts(tmp_path_factory.mktemp("mounts"), fastpath=request.param)
    yield mounts(packed)
    mounts.end()


@pytest.fixture
def attributed(packed: Path, mounts: Mounts) -> Path:
    """The folder, packed and mounted with extended attributes."""
    return mounts(packed, xattr=True)


# ---------------------------------------------------------------- names and contents


def test_everything_a_pack_keeps_is_shown(folder: Path, mounted: Path) -> None:
    assert describe(mounted) == describe(folder)


def test_ordinary_tools_find_no_difference(folder: Path, mounted: Path) -> None:
    subprocess.run(["diff", "-r", "--no-dereference", folder, mounted], check=True)
    listing = ["find", ".", "-printf", "%p %y %m %n %T@ %l\n"]
    ours, theirs = (subprocess.check_output(listing, cwd=where).splitlines() for where in (mounted, folder))
    assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize("name", ["tree.ffr", "tree-proto3.ffr", "byte-names.ffr", "deep.ffr", "empty.ffr"])
def test_packs_written_by_ffrecord(name: str, golden: Golden, mounts: Mounts) -> None:
    path = golden.path(f"packed/{name}")
    mounted = os.fsencode(mounts(path))
    expected = fffs.PackedFolder(path)
    found = {}
    for where, _, names in os.walk(mounted):
        for file in names:
            full = os.path.join(where, file)
            found[full[len(mounted) + 1 :]] = sha256(Path(os.fsdecode(full)).read_bytes())
    entry = golden.files[f"packed/{name}"]
    assert len(found) == entry["n"] - 1
    assert found == {inner: sha256(bytes(expected.read_one(inner))) for inner in found}


def test_plain_records_are_numbered_files(golden: Golden, mounts: Mounts) -> None:
    mounted = mounts(golden.path("mixed-100.ffr"), suffix=".bin")
    records = golden.raw("mixed-100.ffr").records
    assert sorted(os.listdir(mounted)) == [f"{i:06}.bin" for i in range(100)]
    assert all((mounted / f"{i:06}.bin").read_bytes() == records[i] for i in range(100))


def test_a_folder_of_parts_is_numbered_through(golden: Golden, mounts: Mounts) -> None:
    parts = sorted(golden.path("parts").glob("*.ffr"))
    expected = [record for part in parts for record in golden.raw(f"parts/{part.name}").records]
    mounted = mounts(golden.path("parts"), xattr=True)
    names = sorted(os.listdir(mounted))
    assert [(mounted / name).read_bytes() for name in names] == expected
    source = {os.getxattr(mounted / name, "user.fffs.source") for name in names}
    assert source == {os.fsencode(part) for part in parts}


def test_in_a_union_the_first_wins_and_the_daemon_warns(tmp_path: Path, mounts: Mounts) -> None:
    for k, names in enumerate((["both", "first/x"], ["both", "second/y", "first/z"])):
        for name in names:
            path = tmp_path / f"f{k}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} of {k}")
        fffs.pack_folder(tmp_path / f"f{k}", tmp_path / f"{k}.ffr")
    mounted = mounts(tmp_path / "0.ffr", tmp_path / "1.ffr", xattr=True)
    mounts.daemon.expect("both: also in .*1.ffr, which is hidden")
    assert len(mounts.daemon.trouble()) == 1
    content = {str(path.relative_to(mounted)): path.read_text() for path in mounted.rglob("*") if path.is_file()}
    assert content == {
        "both": "both of 0",
        "first/x": "first/x of 0",
        "second/y": "second/y of 1",
        "first/z": "first/z of 1",
    }
    with fffs.FileReader(tmp_path / "1.ffr") as reader:  # records are numbered within each file
        assert bytes(reader.read_one(int(os.getxattr(mounted / "second/y", "user.fffs.record")))) == b"second/y of 1"
    assert os.getxattr(mounted, "user.fffs.source").split(b"\n") == [os.fsencode(tmp_path / f"{k}.ffr") for k in (0, 1)]


def test_the_root_of_many_sources_says_as_many_as_it_can(tmp_path: Path, mounts: Mounts) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    with fffs.FileWriter(folder / "0.ffr", 1) as writer:
        writer.write_one(b"content")
    for k in range(1, 500):
        os.link(folder / "0.ffr", folder / f"{k}.ffr")
    *lines, last = os.getxattr(mounts(folder, xattr=True), "user.fffs.source").split(b"\n")
    assert lines == sorted(os.fsencode(path) for path in folder.iterdir())[: len(lines)]
    assert last == b"and %d more" % (500 - len(lines))
    assert len(lines) > 200


def test_sources_are_named_whole_or_not_at_all() -> None:
    from inside import LARGEST_ATTRIBUTE as LARGEST
    from inside import in_lines

    for count in (1, 2, 250, 251, 252, 253, 1000):
        paths = [b"/d\n" + b"x" * 255 + b"%03d" % k for k in range(count)]
        value = in_lines(paths)
        assert len(value) <= LARGEST
        whole = b"\n".join(paths)
        if value != whole:
            assert len(whole) > LARGEST
            kept, more = value.rsplit(b"\nand ", 1)
            assert whole.startswith(kept + b"\n/d")
            assert kept.count(b"/d") + int(more.split()[0]) == count


# ---------------------------------------------------------------- directories


def test_a_listing_can_begin_at_every_offset(tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "folder").mkdir()
    names = [f"{k:03}".encode() + b"x" * (k % 200) for k in range(700)]
    for name in names:
        (tmp_path / "folder" / os.fsdecode(name)).touch()
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    fd = os.open(mounts(tmp_path / "p.ffr"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries, offset = [], 0
        while part := list_from(fd, offset):
            entries += part
            offset = part[-1][2]
            assert len(entries) <= 702, "a listing without an end"
        assert [name for name, _, _ in entries] == [b".", b"..", *names]
        for k in [*range(0, len(entries), 7), len(entries) - 1, 3, 0]:  # also backwards
            assert [name for name, _, _ in list_from(fd, entries[k][2])][:5] == [
                name for name, _, _ in entries[k + 1 : k + 6]
            ]
        # A buffer for a single entry gives the same results.
        assert [list_from(fd, after, 300)[0][0] for _, _, after in entries[:50]] == [b"..", *names[:49]]
        assert list_from(fd, offset + 1000) == []
        assert len({inode for _, inode, _ in entries[2:]}) == 700
    finally:
        os.close(fd)


def test_inodes_of_a_listing_are_those_of_stat(mounted: Path) -> None:
    for where, folders, files in os.walk(mounted):
        listed = {entry.name: entry.inode() for entry in os.scandir(where)}
        assert listed == {name: os.lstat(os.path.join(where, name)).st_ino for name in folders + files}
    assert os.stat(mounted / "a").st_ino == os.stat(mounted / "sub" / "a again").st_ino


def test_the_folder_itself_and_the_one_above_are_in_each_listing(mounted: Path) -> None:
    for where, folders, _ in os.walk(mounted):
        fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
        inodes = {name: inode for name, inode, _ in list_from(fd, 0)}
        os.close(fd)
        # The root of a mount is its own parent, as far as the file system knows.
        above = mounted if where == str(mounted) else Path(where).parent
        assert (inodes[b"."], inodes[b".."]) == (os.stat(where).st_ino, os.stat(above).st_ino)
        assert len(inodes) >= 2 + len(folders)


def test_an_inode_alone_leads_upwards(packed: Path) -> None:
    """An NFS server may have forgotten all names; it looks up ``..`` and ``.``."""
    from inside import Operations, load_shown

    with load_shown([str(packed)]) as view:
        assert isinstance(view, TreeView)
        operations, tree = Operations(view, MountOptions()), view.tree
        for path, above in ((b"sub/deeper/deepest", b"sub/deeper"), (b"sub/deeper", b"sub"), (b"sub", b""), (b"", b"")):
            inode, upper = tree.find(path) + 1, tree.find(above) + 1
            assert trio.run(operations.lookup, inode, b"..", None).st_ino == upper
            assert trio.run(operations.lookup, inode, b".", None).st_ino == inode


def test_two_listings_at_once_do_not_disturb_each_other(mounted: Path) -> None:
    with os.scandir(mounted) as first, os.scandir(mounted) as second:
        ours = [(next(first).name, next(second).name) for _ in os.listdir(mounted)]
    assert [a for a, _ in ours] == [b for _, b in ours] == [entry.name for entry in os.scandir(mounted)]


def test_names_that_are_not_there(mounted: Path) -> None:
    for name in ("nothing", "a/b", "A", "n" * 254, ".a"):
        for _ in range(2):  # the second answer comes from the kernel's cache
            assert not os.path.lexists(mounted / name)
    with pytest.raises(NotADirectoryError):
        os.stat(mounted / "a" / "b")
    with pytest.raises(OSError, match="too long"):
        os.stat(mounted / ("n" * 256))


# ---------------------------------------------------------------- stat, statfs, extended attributes


def test_sizes_owners_and_blocks(mounted: Path) -> None:
    large = os.stat(mounted / "sub" / "large")
    assert (large.st_size, large.st_blocks) == (3 * 1024 * 1024 + 17, 6145)
    assert (large.st_uid, large.st_gid) == (os.getuid(), os.getgid())
    assert large.st_atime_ns == large.st_mtime_ns == large.st_ctime_ns
    assert os.lstat(mounted / "link").st_size == len("sub/page")
    assert os.stat(mounted).st_ino == 1


def test_owner_and_modes_can_be_set(packed: Path, mounts: Mounts) -> None:
    mounted = mounts(packed, uid=1234, gid=5678, umask=0o077)
    status = os.stat(mounted / "sub")
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 5678, 0o700)
    assert stat.S_IMODE(os.stat(mounted / "sub" / "deeper" / "script").st_mode) == 0o700


def test_statfs_shows_a_full_file_system(mounted: Path, packed: Path) -> None:
    found = os.statvfs(mounted)
    assert (found.f_bsize, found.f_frsize, found.f_namemax) == (4096, 4096, 255)
    assert (found.f_bfree, found.f_bavail, found.f_ffree) == (0, 0, 0)
    assert found.f_blocks == -(-packed.stat().st_size // 4096)
    assert found.f_files == 1 + sum(len(a) + len(b) for _, a, b in os.walk(mounted)) - 1  # one is a hard link
    assert found.f_flag & os.ST_RDONLY and found.f_flag & os.ST_NOSUID


def test_extended_attributes_of_a_file(attributed: Path, packed: Path) -> None:
    path = attributed / "sub" / "large"
    assert sorted(os.listxattr(path)) == [f"user.fffs.{name}" for name in ("crc32", "record", "source", "verified")]
    record = int(os.getxattr(path, "user.fffs.record"))
    content = path.read_bytes()
    with fffs.FileReader(packed) as reader:
        assert bytes(reader.read_one(record)) == content
        assert int(os.getxattr(path, "user.fffs.crc32"), 16) == reader.get_checksums()[record]
    assert len(os.getxattr(path, "user.fffs.crc32")) == 8
    assert os.getxattr(path, "user.fffs.source") == os.fsencode(packed)


def test_no_extended_attributes_unless_asked_for(mounted: Path) -> None:
    """The kernel does not even ask for them: ls -l would ask for several of each file."""
    for call in (
        lambda p: os.getxattr(p, "user.fffs.record"),
        os.listxattr,
        lambda p: os.getxattr(p, "security.selinux"),
    ):
        for path in (mounted / "a", mounted / "sub", mounted):
            with pytest.raises(OSError) as caught:
                call(path)
            assert caught.value.errno == errno.ENOTSUP
    before = counters_of(mounted)["python"]
    subprocess.run(["ls", "-lR", mounted], check=True, stdout=subprocess.DEVNULL)
    after = counters_of(mounted)["python"]
    assert (after["getxattr"], after["listxattr"]) == (before["getxattr"], before["listxattr"])


def test_verified_says_what_was_checked(packed: Path, mounts: Mounts) -> None:
    mounted = mounts(packed, xattr=True)
    page, large = mounted / "sub" / "page", mounted / "sub" / "large"
    assert os.getxattr(page, "user.fffs.verified") == b"no"
    page.read_bytes()
    assert os.getxattr(page, "user.fffs.verified") == b"yes"
    with large.open("rb", 0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(100)
    assert os.getxattr(large, "user.fffs.verified") == b"no"  # verified by blocks, and not all were read
    large.read_bytes()
    assert os.getxattr(large, "user.fffs.verified") == b"yes"


def test_extended_attributes_that_are_not_there(attributed: Path) -> None:
    mounted = attributed
    assert os.listxattr(mounted) == ["user.fffs.source"]
    assert os.listxattr(mounted / "sub") == []
    assert os.listxattr(mounted / "link", follow_symlinks=False) == []
    for path, name in [
        ("a", "user.other"),
        ("sub", "user.fffs.crc32"),
        ("a", "security.capability"),
        ("", "user.fffs.crc32"),
    ]:
        with pytest.raises(OSError) as caught:
            os.getxattr(mounted / path, name)
        assert caught.value.errno == errno.ENODATA


# As on ext4, for names about which the kernel asks the file system.
ABSENT = {
    **dict.fromkeys(["user.x", "user..x", "security.selinux", "trusted.x", "gnu.x"], "ENODATA"),
    **dict.fromkeys(["system.posix_acl_access", "system.posix_acl_default"], "ENODATA"),
    **dict.fromkeys(["user.", "security.", "trusted.", "gnu."], "EINVAL"),
    **dict.fromkeys(["x", "user", "USER.x", "userx.y", ".", " x", "a" * 255, "btrfs.x", "os2.x"], "ENOTSUP"),
    **dict.fromkeys(["system.", "system.x", "system.posix_acl_access.x", "system.posix_acl_accessx"], "ENOTSUP"),
    **dict.fromkeys(["", "a" * 256], "ERANGE"),
}


@pytest.mark.parametrize("path", ["", "a"])
def test_attributes_that_are_not_there_are_so_by_their_namespace(path: str, attributed: Path) -> None:
    found = {}
    for name in ABSENT:
        with pytest.raises(OSError) as caught:
            os.getxattr(attributed / path, name)
        found[name] = errno.errorcode[caught.value.errno or 0]
    if os.geteuid() != 0:  # answered by the kernel itself
        del found["trusted."]
    assert found == {name: ABSENT[name] for name in found}


def test_files_without_checksums_say_so(golden: Golden, mounts: Mounts) -> None:
    mounted = mounts(golden.path("mixed-100.ffr"), verify=False, xattr=True)
    (mounted / "000001").read_bytes()
    assert os.getxattr(mounted / "000001", "user.fffs.verified") == b"no"


# ---------------------------------------------------------------- programs


def test_programs_can_be_run_unless_noexec(mounted: Path, packed: Path, mounts: Mounts) -> None:
    assert subprocess.check_output([mounted / "sub/deeper/script"]) == b"ran\n"
    with pytest.raises(PermissionError):
        subprocess.check_output([mounts(packed, noexec=True) / "sub/deeper/script"])
