"""Mounts that the kernel serves alone: they show what the packed folder is, or nothing, and leave nothing behind."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import mmap
import os
import random
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mount_model
import numpy as np
import pytest
from builders import MIB, as_nobody, small_disk
from inside import AtomicFile, PackFile, TreeBuilder, erofs, kernel_mount, load_source, mount_at, run_program, verify
from mounting import describe, detach_all, in_namespace, is_mounted, libc, mounts_below, run_fffs, wait_until
from test_mount_changes import all_outcomes
from test_mount_tree import make_folder
from tracing import prepared

import fffs
import fffs.mount
from fffs.errors import FffsError, MountError, SourceChangedError, UsageError
from fffs.mount import MountOptions

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can let the kernel mount a pack"),
]

OPTIONS = MountOptions(kernel=True, allow_other=True)
# Calls that mount, besides those that change files. ptrace knows them by number: fsopen, fsconfig, fsmount, move_mount.
CALLS = "openat,write,pwrite64,ioctl,fsopen,fsconfig,fsmount,move_mount,mkdir,symlink,setxattr,fsetxattr,unshare,close"


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    """A mount point, which is unmounted after the test."""
    yield tmp_path / "mnt"
    detach_all(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("source") / "folder")


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fffs.pack_folder(folder, folder.parent / "packed.ffr", align=True)
    return folder.parent / "packed.ffr"


def mounted(pack: Path, point: Path, **options: Any) -> Path:
    """Mount, visible to all users, which changes no mode."""
    fffs.mount.mount(pack, point, options=MountOptions(**{"kernel": True, "allow_other": True} | options))
    assert mount_at(str(point)).type == "erofs"  # type: ignore[union-attr]
    return point


def loops_of(folder: Path) -> list[str]:
    """Return the loop devices over files of a folder, and over files that were removed."""
    lines = subprocess.check_output(["losetup", "-a"], text=True).splitlines()
    return [line for line in lines if str(folder) in line or "(deleted)" in line]


def grown(folder: Path, seed: int) -> Path:
    """Grow a random folder and pack it."""
    mount_model.grow(folder, seed)
    fffs.pack_folder(folder, folder.with_suffix(".ffr"), align=True)
    return folder.with_suffix(".ffr")


# ---------------------------------------------------------------- what it shows


def test_everything_a_pack_keeps_is_shown(folder: Path, packed: Path, point: Path) -> None:
    assert describe(mounted(packed, point)) == describe(folder)
    subprocess.run(["diff", "-r", "--no-dereference", folder, point], check=True)


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_have_the_results_of_the_plain_folder(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks have 512 bytes, not 4096.
    status = mount_model._status
    monkeypatch.setattr(mount_model, "_status", lambda found: status(found) | {"block": None})
    monkeypatch.setattr(mount_model, "_limits", lambda path: os.statvfs(path).f_namemax)
    up = tmp_path / "up" / "and up"
    up.mkdir(parents=True)
    pack = grown(up / f"plain{seed}", seed)
    try:
        mounted(pack, up / "mounted")
        pair = os.fsencode(up / f"plain{seed}"), os.fsencode(up / "mounted")
        assert mount_model.compare([pair], range(300)) == ""
    finally:
        detach_all(tmp_path)


def test_changes_fail_as_on_any_read_only_file_system(folder: Path, packed: Path, point: Path) -> None:
    mounted(packed, point)
    found = all_outcomes(point)
    assert sum(result == "EROFS" for result in found.values()) > 100
    assert not [
        call for call, result in found.items() if call.startswith(("write", "truncate: file")) and "done" in result
    ]
    with pytest.raises(OSError, match="Read-only") as caught:
        (point / "a").write_bytes(b"changed")
    assert caught.value.errno == errno.EROFS
    assert describe(point) == describe(folder)


def test_folders_of_all_sizes_with_all_kinds_of_names(tmp_path: Path, point: Path) -> None:
    """The entries of a folder are in blocks of 512 bytes, with "." and ".." in the order of their names."""
    rng = random.Random("names")
    folder = tmp_path / "folder"
    expected: dict[str, list[bytes]] = {}
    for k in range(80):
        names = {
            bytes(rng.choice(b"!+-./0a\xff") for _ in range(rng.randrange(1, 5))).replace(b"/", b"x") for _ in range(k)
        }
        names |= {
            bytes([rng.randrange(1, 256)]).replace(b"/", b"y") * rng.choice((1, 100, 231, 255)) for _ in range(k // 2)
        }
        names -= {b".", b".."}
        where = folder / f"{k}"
        where.mkdir(parents=True)
        for name in names:
            with open(os.path.join(os.fsencode(where), name), "wb") as file:
                file.write(name)
        expected[str(k)] = sorted(names)
    fffs.pack_folder(folder, tmp_path / "p.ffr", align=True)
    mounted(tmp_path / "p.ffr", point)
    for k, names in expected.items():
        where = os.fsencode(point / k)
        assert sorted(os.listdir(where)) == names
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                assert file.read() == name
        for missing in (b"", b".x", b"-", b"\xff\xff\xff\xff\xff", b"!" * 254):
            assert os.path.lexists(os.path.join(where, missing)) == (missing in (*names, b""))
        assert os.stat(os.path.join(where, b"..")).st_ino == os.stat(point).st_ino


def test_a_folder_of_many_files_and_many_folders(tmp_path: Path, point: Path) -> None:
    folder = tmp_path / "folder"
    for k in range(300):
        (folder / f"{k:03}" / "sub").mkdir(parents=True)
    for k in range(20_000):
        (folder / "000" / f"file {k}").touch()
    fffs.pack_folder(folder, tmp_path / "p.ffr", align=True)
    mounted(tmp_path / "p.ffr", point)
    assert describe(point) == describe(folder)


@pytest.mark.parametrize("length", [1, 447, 448, 449, 450, 511, 512, 513, 4095])
def test_links_of_all_lengths(length: int, tmp_path: Path, point: Path) -> None:
    """Short targets are stored behind their inode, in the same block."""
    (tmp_path / "folder").mkdir()
    for k in range(20):
        os.symlink("x" * length, tmp_path / "folder" / f"link{k}")
        os.symlink("y" * (k + 1), tmp_path / "folder" / f"short{k}")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr", align=True)
    assert describe(mounted(tmp_path / "p.ffr", point)) == describe(tmp_path / "folder")


def test_owners_and_modes_can_be_set(packed: Path, point: Path) -> None:
    mounted(packed, point, uid=1234, gid=4_000_000_000, umask=0o077, noexec=True)
    status = os.stat(point / "sub")
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4_000_000_000, 0o700)
    assert stat.S_IMODE(os.lstat(point / "link").st_mode) == 0o777
    assert os.statvfs(point).f_flag & (os.ST_NOEXEC | os.ST_NOSUID | os.ST_NODEV | os.ST_RDONLY) == 15
    with pytest.raises(PermissionError):
        subprocess.run([point / "sub" / "deeper" / "script"], check=True)


def test_only_with_allow_other_can_other_users_look_inside(packed: Path, shared_folder: Path) -> None:
    (shared_folder / "p.ffr").write_bytes(packed.read_bytes())
    for allow_other in (False, True):
        at = mounted(shared_folder / "p.ffr", shared_folder / f"mnt{allow_other}", allow_other=allow_other)
        try:
            assert stat.S_IMODE(os.stat(at).st_mode) == (0o755 if allow_other else 0o700)
            assert stat.S_IMODE(os.stat(at / "sub").st_mode) == 0o755
            with as_nobody(shared_folder):
                if allow_other:
                    assert (at / "a").read_bytes() == b"the first file\n"
                    with pytest.raises(PermissionError):
                        (at / "private").read_bytes()
                else:
                    with pytest.raises(PermissionError):
                        (at / "a").read_bytes()
        finally:
            fffs.mount.umount(at)


def test_what_follows_the_last_byte_of_a_file_in_memory_is_zero(folder: Path, packed: Path, point: Path) -> None:
    mounted(packed, point)
    for name in ("a", "sub/large", "private"):
        with open(point / name, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            size = len(memory)
            assert memory[:] == (folder / name).read_bytes()
            # The whole last page, which mmap's object hides.
            pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            libc.mmap.restype = ctypes.c_void_p
            at = libc.mmap(None, ctypes.c_size_t(pages), 1, 2, file.fileno(), ctypes.c_long(0))
            data = ctypes.string_at(at, pages)
            libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(pages))
            assert data[:size] == memory[:]
            assert not any(data[size:])


def test_a_union_reads_several_packs(tmp_path: Path, point: Path) -> None:
    for k, names in enumerate((["both", "first/x"], ["both", "second/y", "first/z"], ["third"])):
        for name in names:
            path = tmp_path / f"f{k}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} of {k}" * 1000)
        fffs.pack_folder(tmp_path / f"f{k}", tmp_path / f"{k}.ffr", align=True)
    fffs.mount.mount([tmp_path / f"{k}.ffr" for k in range(3)], point, options=OPTIONS)
    content = {str(path.relative_to(point)): path.read_text()[:13] for path in point.rglob("*") if path.is_file()}
    assert {name: text.split()[-1][0] for name, text in content.items()} == {
        "both": "0",
        "first/x": "0",
        "first/z": "1",
        "second/y": "1",
        "third": "2",
    }


def test_a_union_of_packs_with_different_alignments(
    tmp_path: Path, point: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack of 2 TiB or more has larger gaps."""
    for k, alignment in enumerate((9, 12)):
        (tmp_path / f"f{k}").mkdir()
        for size in (0, 1, 600, 5000):
            (tmp_path / f"f{k}" / f"{k}-{size}").write_bytes(b"x" * size)
        monkeypatch.setattr(PackFile, "_choose_alignment", lambda _, chosen=alignment: chosen)
        fffs.pack_folder(tmp_path / f"f{k}", tmp_path / f"{k}.ffr", align=True)
    fffs.mount.mount([tmp_path / "0.ffr", tmp_path / "1.ffr"], point, options=OPTIONS)
    content = {path.name: path.read_bytes() for path in point.iterdir()}
    assert content == {f"{k}-{size}": b"x" * size for k in (0, 1) for size in (0, 1, 600, 5000)}


@pytest.mark.parametrize("time", [-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1])
def test_times_at_the_limits(time: int, tmp_path: Path, point: Path) -> None:
    builder = TreeBuilder(mtime=time)
    builder.add_file(0, b"a", 0, mtime=time)
    with AtomicFile(str(tmp_path / "p.ffr")) as file:
        pack = PackFile(file, np.array([1]), align=True)
        pack.put(0, 0, b"x")
        pack.finish(builder.build(1, "test"))
        file.commit()
    mounted(tmp_path / "p.ffr", point)
    assert os.stat(point).st_mtime_ns == os.stat(point / "a").st_mtime_ns == time


def test_an_empty_pack(tmp_path: Path, point: Path) -> None:
    (tmp_path / "folder").mkdir()
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr", align=True)
    assert os.listdir(mounted(tmp_path / "p.ffr", point)) == []


def test_random_trees_are_shown_as_they_are(tmp_path: Path, point: Path) -> None:
    """Trees that no folder has: modes with all bits, times far away, many names of a node."""
    for seed in range(30):
        rng = random.Random(f"tree {seed}")
        builder = TreeBuilder(stat.S_IFDIR | 0o700, rng.randrange(-(2**62), 2**62))
        folders, files = [0], []
        contents = [rng.randbytes(rng.choice((0, 1, 511, 512, 513, 5000))) for _ in range(20)]
        for k in range(rng.randrange(200)):
            name = b"%d" % k + rng.randbytes(rng.randrange(30)).replace(b"/", b"").replace(b"\0", b"")
            mode, mtime, parent = rng.randrange(0o10000), rng.randrange(-(2**62), 2**62), rng.choice(folders)
            kind = rng.randrange(4)
            if kind == 0:
                folders.append(builder.add_directory(parent, name, stat.S_IFDIR | mode, mtime))
            elif kind == 1 and files:
                builder.add_link(parent, name, rng.choice(files))
            elif kind == 2:
                builder.add_symlink(parent, name, b"t" * rng.randrange(1, 600), stat.S_IFLNK | 0o777, mtime)
            else:
                files.append(builder.add_file(parent, name, rng.randrange(20), stat.S_IFREG | mode, mtime))
        tree = builder.build(20, "test")
        with AtomicFile(str(tmp_path / "p.ffr")) as file:
            pack = PackFile(file, np.array([len(data) for data in contents]), align=True)
            for k, data in enumerate(contents):
                pack.put(k, 0, data)
            pack.finish(_naming_all(tree))
            file.commit()
        mounted(tmp_path / "p.ffr", point)
        with load_source(tmp_path / "p.ffr") as source:
            shown = source.tree
            for path, node in shown.walk():
                status = os.lstat(os.path.join(os.fsencode(point), path))
                assert (status.st_mode, status.st_mtime_ns, status.st_nlink) == (
                    shown.mode[node],
                    shown.mtime[node],
                    shown.nlink[node],
                )
                full = os.path.join(os.fsencode(point), path)
                if shown.is_file(node):
                    assert Path(os.fsdecode(full)).read_bytes() == contents[(shown.record(node) - 1) // 2]
                elif shown.is_symlink(node):
                    assert os.readlink(full) == shown.target(node)
                else:
                    assert sorted(os.listdir(full)) == [name for name, _ in shown.entries(node)]
        fffs.mount.umount(point)


def _naming_all(tree: Any) -> Any:
    """Let some file have the last record, so that the tree belongs to its file."""
    ref = tree.ref.copy()
    files = np.flatnonzero(tree.kinds == stat.S_IFREG)
    if len(files):
        ref[files[0]] = 19
        return dataclasses.replace(tree, ref=ref)
    builder = TreeBuilder()
    builder.add_file(0, b"last", 19)
    return builder.build(20, "test")


# ---------------------------------------------------------------- what cannot be mounted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["decode"], "the kernel does not know the option decode"),
        (["suffix=.jpg"], "the option suffix"),
        (["xattr"], "the option xattr"),
    ],
)
def test_options_that_need_a_daemon(options: list[str], message: str, packed: Path, point: Path) -> None:
    said = run_fffs("mount", packed, point, "-o", ",".join(["kernel", *options]), code=10)
    assert message in said and said.count("\n") == 1
    assert not point.exists()


def test_options_about_a_daemon_have_no_effect_and_that_is_said(packed: Path, tmp_path: Path, point: Path) -> None:
    options = f"kernel,log={tmp_path}/log,readahead=8,threads=1,fastpath=off,readdirplus=auto,umask=22"
    said = run_fffs("mount", packed, point, "-o", options)
    assert said.endswith("; without effect: fastpath=, threads=, readahead=, readdirplus=, log=\n")
    assert said.count("\n") == 1 and not (tmp_path / "log").exists()


def test_what_the_kernel_cannot_mount_is_said_in_a_line(
    folder: Path, tmp_path: Path, packed: Path, point: Path
) -> None:
    fffs.pack_folder(folder, tmp_path / "plain.ffr")
    with fffs.FileWriter(tmp_path / "records.ffr", 1) as writer:
        writer.write_one(b"record")
    for name, advice in (
        ("plain.ffr", f"fffs convert --align {tmp_path}/plain.ffr NEW.ffr"),
        ("records.ffr", "not a pack, and -o kernel mounts nothing else; omit it"),
    ):
        said = run_fffs("mount", tmp_path / name, point, "-o", "kernel", code=10)
        assert advice in said and name in said and said.count("\n") == 1
    said = run_fffs("mount", packed, tmp_path / "plain.ffr", point, "-o", "kernel", code=10)
    assert "plain.ffr: its files are not aligned" in said
    with pytest.raises(UsageError, match="no daemon; omit -f"):
        fffs.mount.mount(packed, point, options=OPTIONS, foreground=True)
    assert not point.exists()


def test_an_ordinary_user_cannot(packed: Path, tmp_path: Path) -> None:
    with as_nobody(tmp_path), pytest.raises(MountError, match="only root"):
        fffs.mount.mount("pack.ffr", "mnt", options=OPTIONS)


def test_auto_falls_back_to_a_daemon_and_says_why(folder: Path, tmp_path: Path, packed: Path, point: Path) -> None:
    fffs.pack_folder(folder, tmp_path / "plain.ffr")
    said = run_fffs("mount", tmp_path / "plain.ffr", point, "-o", f"kernel=auto,log={tmp_path}/log")
    why = "its files are not aligned, which -o kernel needs"
    assert said == f"fffs: {tmp_path}/plain.ffr: {why}; so a daemon serves the mount\n"
    assert mount_at(str(point)).type == "fuse.fffs"  # type: ignore[union-attr]
    assert describe(point) == describe(folder)
    run_fffs("umount", point)
    assert "mounted without a daemon: records were verified" in run_fffs("mount", packed, point, "-o", "kernel=auto")
    assert mount_at(str(point)).type == "erofs"  # type: ignore[union-attr]


def test_damage_is_found_before_anything_is_shown(tmp_path: Path, packed: Path, point: Path) -> None:
    data = bytearray(packed.read_bytes())
    at = data.index(b"the first file")
    data[at] ^= 1
    (tmp_path / "bad.ffr").write_bytes(data)
    with pytest.raises(MountError, match=r"bad.ffr: (a|sub/a again): checksum mismatch .* without -o kernel"):
        mounted(tmp_path / "bad.ffr", point)
    assert not point.exists()
    assert (mounted(tmp_path / "bad.ffr", point, verify=False) / "a").read_bytes() == b"uhe first file\n"


def test_padding_that_is_not_zero_is_refused(tmp_path: Path, point: Path) -> None:
    """Whoever maps a file sees what follows its last byte. Checksums show that without reading."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"content")
    target = tmp_path / "p.ffr"
    builder = TreeBuilder()
    builder.add_file(0, b"a", 0)
    with AtomicFile(str(target)) as file:
        pack = PackFile(file, np.array([7]), align=True)
        pack.put(0, 0, b"content")
        os.pwrite(file.fd, b"x", int(pack.offsets[0]) + 7)
        records = pack._records

        def with_their_checksums() -> Any:
            checksums, offsets = records()
            size = int(offsets[3] - offsets[2])
            checksums[2] = zlib.crc32(b"x" + bytes(size - 1))
            return checksums, offsets

        pack._records = with_their_checksums  # type: ignore[method-assign]
        pack.finish(builder.build(1, "test"))
        file.commit()
    with load_source(target) as source:
        assert verify(source) == []
    for checked in (True, False):
        with pytest.raises(MountError, match="record 2 is not the padding"):
            mounted(target, point, verify=checked)
    fffs.mount.mount(target, point, options=MountOptions(kernel=None, log=str(tmp_path / "log")))
    assert (point / "a").read_bytes() == b"content"


# ---------------------------------------------------------------- its life


def test_what_the_tables_and_commands_show(packed: Path, point: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_fffs("mount", packed, point, "-o", "kernel")
    line = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {point} " in line)
    assert line.startswith(f"fffs:{packed} {point} erofs ro,nosuid,nodev,noatime")
    assert run_program(["stat", str(point)]) == 0
    assert f"{packed}, mounted by the kernel" in capfd.readouterr().out
    assert run_program(["stat", "--json", str(point)]) == 0
    assert f'"source": "{packed}"' in capfd.readouterr().out
    assert run_program(["info", "--json", str(point / "sub" / "page")]) == 0
    assert '"kind": "file"' in capfd.readouterr().out
    assert "nothing to watch" in run_fffs("stat", "--watch", point, code=10)
    assert f"{packed} is mounted there" in run_fffs("mount", packed, point, "-o", "kernel", code=10)
    with open(point / "a", "rb"):
        assert "in use" in run_fffs("umount", point, code=10)
    run_fffs("umount", point)
    assert point.exists()


def test_a_mount_point_is_not_removed_by_the_mounts_of_others(packed: Path, tmp_path: Path, point: Path) -> None:
    """In another namespace, others end on the same folder; removing it would detach this mount."""
    mounted(packed, point)

    def elsewhere(_: Path) -> None:
        fffs.mount.umount(point)
        with fffs.mount.mounted(packed, point):
            assert (point / "a").exists()

    in_namespace(elsewhere)
    assert is_mounted(point) and (point / "a").exists()


def test_the_end_of_a_block_leaves_the_mounts_of_others_at_its_folder(packed: Path, point: Path) -> None:
    """In another namespace, and over it in this one."""
    entered, left = threading.Event(), threading.Event()

    def elsewhere(_: Path) -> None:
        fffs.mount.umount(point)
        mounted(packed, point)
        entered.set()
        left.wait(60)
        assert (point / "a").exists()
        fffs.mount.umount(point)

    other = threading.Thread(target=in_namespace, args=(elsewhere,))
    with fffs.mount.mounted(packed, point, kernel=True):
        other.start()
        assert entered.wait(60)
    left.set()
    other.join()
    assert point.exists()
    with pytest.raises(MountError), fffs.mount.mounted(packed, point, kernel=True):
        subprocess.run(["mount", "-t", "tmpfs", "over", point], check=True)
    assert mount_at(str(point)).type == "tmpfs"  # type: ignore[union-attr]
    subprocess.run(["umount", point], check=True)
    fffs.mount.umount(point)


@pytest.mark.parametrize(
    "name", ["a b", "tab\tand\nnewline", "back\\slash", "c\rr", "\udcff", ",comma=1", "n" * 250, "a:b"]
)
def test_strange_names(name: str, packed: Path, tmp_path: Path, point: Path) -> None:
    pack = tmp_path / f"{name}.ffr"
    os.link(packed, pack)
    at = tmp_path / f"at {name}"[:250]
    fffs.mount.mount(pack, at, options=OPTIONS)
    mount = mount_at(str(at))
    assert mount is not None and mount.ours
    assert mount.origin == str(pack) or mount.origin == "..." + str(pack)[-240:]
    assert (at / "a").exists()
    fffs.mount.umount(at)


def test_a_name_that_goes_up_again(packed: Path, tmp_path: Path, point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    os.link(packed, tmp_path / "set" / packed.name)
    os.symlink(tmp_path / "set", tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    for name in (f"set/../set/{packed.name}", f"link/../set/{packed.name}", "set/../set", "set/x/..", "link/../set/."):
        (tmp_path / "set" / "x").mkdir() if name == "set/x/.." else None
        fffs.mount.mount(name, point, options=OPTIONS)
        origin = mount_at(str(point)).origin  # type: ignore[union-attr]
        assert os.path.samefile(origin, name)
        assert ".." not in origin
        fffs.mount.umount(point)


def test_a_name_that_no_path_can_have(packed: Path, tmp_path: Path, point: Path) -> None:
    """The names of several sources, one behind the other, are no path if a component is too long."""
    os.link(packed, tmp_path / ("n" * 251 + ".ffr"))
    fffs.mount.mount([tmp_path / ("n" * 251 + ".ffr"), packed], point, options=OPTIONS)
    assert mount_at(str(point)).ours  # type: ignore[union-attr]
    fffs.mount.umount(point)


def test_mounting_changes_nothing_in_this_process(packed: Path, point: Path) -> None:
    def state() -> tuple[Any, ...]:
        return os.getcwd(), sorted(os.listdir("/proc/self/fd")), [signal.getsignal(n) for n in (2, 15, 1)]

    mounted(packed, point)  # what is opened once is opened here
    fffs.mount.umount(point)
    before = state()
    mounted(packed, point)
    fffs.mount.umount(point)
    assert state() == before


def test_it_needs_neither_pyfuse3_nor_trio(packed: Path, point: Path) -> None:
    code = (
        "import sys; sys.modules.update(pyfuse3=None, trio=None)\n"
        "import fffs.mount; fffs.mount.mount(sys.argv[1], sys.argv[2], options=fffs.mount.MountOptions(kernel=True))"
    )
    subprocess.run([sys.executable, "-c", code, packed, point], check=True)
    assert is_mounted(point)


def test_what_mount_8_calls(packed: Path, tmp_path: Path, point: Path) -> None:
    point.mkdir()
    fffs.mount.helper([str(packed), str(point), "-o", "rw,kernel,uid=5,x-systemd.automount"])
    assert os.stat(point / "a").st_uid == 5
    fffs.mount.helper([str(packed), str(point), "-o", "kernel"])  # as a second `mount -a` does
    assert len([at for at in mounts_below(tmp_path) if at == str(point)]) == 1
    subprocess.run(["umount", point], check=True)


def test_info_says_why_nothing_is_verified(packed: Path, point: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mounted(packed, point)
    capfd.readouterr()
    assert run_program(["info", str(point / "a")]) == 0
    said = capfd.readouterr().out
    assert "verified:           no\n" in said and "does not verify while it is read; fffs verify SOURCE does\n" in said


def test_a_second_mount_a_with_a_long_name(packed: Path, tmp_path: Path, point: Path) -> None:
    long = tmp_path / ("x" * 250) / "p.ffr"
    long.parent.mkdir()
    os.link(packed, long)
    point.mkdir()
    for _ in range(2):
        fffs.mount.helper([str(long), str(point), "-o", "kernel"])
    assert len([at for at in mounts_below(tmp_path) if at == str(point)]) == 1


@pytest.mark.parametrize("program", ["fffs", "mount.fffs"])
def test_a_name_with_a_newline_is_one_line_of_a_message(
    program: str, packed: Path, tmp_path: Path, point: Path
) -> None:
    odd = tmp_path / "a\n\x1b[1mb.ffr"
    os.link(packed, odd)
    command = [sys.executable, "-m", "fffs", "mount"]
    if program == "mount.fffs":
        command = [sys.executable, "-c", "from fffs.cli.program import main_mount_helper as main; main()"]
        point.mkdir()
    said = subprocess.run([*command, odd, point, "-o", "kernel"], check=True, capture_output=True, text=True).stderr
    assert said.startswith(f"fffs: {tmp_path}/a\\n\\x1b[1mb.ffr: mounted without a daemon: ")
    assert said.count("\n") == 1


def test_mounted_for_the_length_of_a_with(folder: Path, packed: Path, point: Path) -> None:
    with fffs.mount.mounted(packed, point, kernel=True, allow_other=True) as path:
        assert describe(Path(path)) == describe(folder)
        kept = open(point / "sub" / "large", "rb")  # noqa: SIM115 - it stays open after the block
    assert not point.exists()
    with kept:  # the kernel serves what is open as long as it is
        assert kept.read() == (folder / "sub" / "large").read_bytes()
    with pytest.raises(FffsError, match="no such file"), fffs.mount.mounted(packed.parent / "none.ffr", kernel=True):
        pass


def test_the_mount_of_a_process_that_died_is_unmounted(packed: Path, point: Path) -> None:
    code = "import sys, os, fffs.mount\nwith fffs.mount.mounted(*sys.argv[1:], kernel=True): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, packed, point], check=False)
    end = time.monotonic() + 30
    while point.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_mount_of_a_holder_that_was_killed_is_unmounted(packed: Path, point: Path) -> None:
    with pytest.raises(MountError, match="failed"), fffs.mount.mounted(packed, point, kernel=True):
        os.kill(holder(point), signal.SIGKILL)
    assert not is_mounted(point) and not point.exists()


def holder(point: Path) -> int:
    return int(subprocess.check_output(["pgrep", "-f", f"fffs.mount {point}"], text=True).split()[0])


@pytest.mark.parametrize("kind", ["another file system", "the same pack"])
def test_the_end_of_a_block_leaves_a_mount_that_got_the_number_of_its_own(
    kind: str, packed: Path, tmp_path: Path, point: Path
) -> None:
    """The kernel gives the number and the device of a mount to others as soon as it is gone."""
    with fffs.mount.mounted(packed, point, kernel=True):
        before = mount_at(str(point))
        assert before
        fffs.mount.umount(point)
        for k in range(20):
            other = tmp_path / f"other{k}"
            if kind == "the same pack":
                mounted(packed, other, verify=False)
            else:
                other.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "stranger", other], check=True)
            found = mount_at(str(other))
            assert found
            if found.number == before.number:
                break
        else:
            pytest.fail("the kernel gave the number to nobody")
    assert is_mounted(other)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_holder_unmounts(number: int, packed: Path, point: Path) -> None:
    with fffs.mount.mounted(packed, point, kernel=True):
        os.kill(holder(point), number)
        end = time.monotonic() + 30
        while is_mounted(point):
            assert time.monotonic() < end
            time.sleep(0.01)


# ---------------------------------------------------------------- what happens to the source


def test_a_pack_that_is_removed_or_replaced_is_still_shown(
    folder: Path, packed: Path, tmp_path: Path, point: Path
) -> None:
    os.link(packed, tmp_path / "p.ffr")
    mounted(tmp_path / "p.ffr", point)
    expected = describe(folder)
    (tmp_path / "p.ffr").unlink()
    assert describe(point) == expected
    (tmp_path / "p.ffr").write_bytes(b"another")
    assert describe(point) == expected
    fffs.mount.umount(point)


def test_a_pack_that_is_cut_gives_errors_and_no_wrong_byte(packed: Path, tmp_path: Path, point: Path) -> None:
    pack = tmp_path / "p.ffr"
    pack.write_bytes(packed.read_bytes())
    large = (mounted(pack, point) / "sub" / "large").stat().st_size
    with fffs.PackedFolder(pack) as inside:
        expected = bytes(inside.read_one("sub/large"))
        start = int(inside._view.store.files[0].index.starts[inside._record("sub/large")])
    os.truncate(pack, start + large // 2)
    drop_caches(pack)
    with open(point / "sub" / "large", "rb", 0) as file:
        assert file.read(4096) == expected[:4096]
        with pytest.raises(OSError, match="Input/output") as caught:
            os.pread(file.fileno(), 4096, large - 4096)
        assert caught.value.errno == errno.EIO


def drop_caches(written: Path) -> None:
    """Drop the page cache, of what was written too. sync(2) would also wait for other file systems, which may hang."""
    subprocess.run(["sync", "--file-system", written], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def test_a_pack_that_changes_while_it_is_mounted_is_refused(
    packed: Path, tmp_path: Path, point: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = tmp_path / "p.ffr"
    pack.write_bytes(packed.read_bytes())
    check = kernel_mount.verify

    def and_change(*arguments: Any) -> Any:
        found = check(*arguments)
        with open(pack, "r+b") as file:
            file.write(b"x")
        return found

    monkeypatch.setattr(kernel_mount, "verify", and_change)
    with pytest.raises(SourceChangedError, match="changed while it was mounted"):
        mounted(pack, point)
    assert not point.exists()


def fill(point: Path) -> None:
    (point / "file").write_bytes(b"of somebody")


def mount_another(point: Path) -> None:
    (point.parent / "x").mkdir()
    fffs.pack_folder(point.parent / "x", point.parent / "x.ffr", align=True)
    mounted(point.parent / "x.ffr", point)


def replace_by_a_link(point: Path) -> None:
    point.rmdir()
    (point.parent / "elsewhere").mkdir()
    point.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [
        (fill, "not empty"),
        (mount_another, "is mounted there"),
        (Path.rmdir, "moved or removed"),
        (replace_by_a_link, "moved or removed"),
    ],
)
def test_a_mount_point_that_changes_during_verification(
    meanwhile: Any, message: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point, check = tmp_path / "there", kernel_mount.verify
    point.mkdir()

    def verify_and_change(*arguments: Any) -> Any:
        monkeypatch.undo()  # another mount is verified, too
        meanwhile(point)
        return check(*arguments)

    monkeypatch.setattr(kernel_mount, "verify", verify_and_change)
    before = len(mounts_below(tmp_path))
    with pytest.raises(MountError, match=message):
        fffs.mount.mount(packed, point, options=OPTIONS)
    assert len(mounts_below(tmp_path)) == before + (meanwhile is mount_another)
    detach_all(tmp_path)


def test_the_file_system_of_the_pack_is_kept_busy(packed: Path, tmp_path: Path, point: Path) -> None:
    with small_disk(tmp_path / "disk", packed.stat().st_size + MIB) as disk:
        (disk / "p.ffr").write_bytes(packed.read_bytes())
        mounted(disk / "p.ffr", point)
        assert subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 32
        fffs.mount.umount(point)
        subprocess.run(["umount", disk], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "again", disk], check=True)  # for the end of the block


def test_files_have_no_holes(tmp_path: Path, point: Path) -> None:
    (tmp_path / "in").mkdir()
    with open(tmp_path / "in" / "sparse", "wb") as file:
        file.truncate(3 * MIB)
        file.write(b"begin")
    fffs.pack_folder(tmp_path / "in", tmp_path / "p.ffr", align=True)
    for kernel in (True, False):
        fffs.mount.mount(tmp_path / "p.ffr", point, options=MountOptions(kernel=kernel))
        with open(point / "sparse", "rb") as file:
            status = os.fstat(file.fileno())
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == status.st_size == 512 * status.st_blocks == 3 * MIB
        fffs.mount.umount(point)


# ---------------------------------------------------------------- loop devices


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is in a tmpfs, whose files the kernel mounts with loop devices only."""
    monkeypatch.setenv("TMPDIR", "/dev/shm")


@pytest.mark.usefixtures("without_files")
def test_loop_devices_where_the_kernel_needs_them(folder: Path, packed: Path, point: Path) -> None:
    before = loops_of(packed.parent)
    assert describe(mounted(packed, point)) == describe(folder)
    assert len(loops_of(packed.parent)) == len(before) + 2
    mount = mount_at(str(point))
    assert mount is not None and mount.origin == str(packed)
    fffs.mount.umount(point)
    assert loops_of(packed.parent) == before


@pytest.mark.usefixtures("without_files")
def test_many_mounts_at_once_get_a_loop_device_each(packed: Path, tmp_path: Path, point: Path) -> None:
    before = loops_of(packed.parent)
    points = [tmp_path / f"mnt{k}" for k in range(8)]
    threads = [threading.Thread(target=mounted, args=(packed, at)) for at in points]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((at / "a").read_bytes() == b"the first file\n" for at in points)
    for at in points:
        fffs.mount.umount(at)
    assert loops_of(packed.parent) == before


def test_no_folder_for_the_image(packed: Path, folder: Path, point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with pytest.raises(MountError, match="/nowhere: no room for the image: No such file"):
        mounted(packed, point)
    assert not point.exists()


def test_no_room_for_the_image(packed: Path, tmp_path: Path, point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", MIB) as disk:
        (disk / "full").write_bytes(bytes(MIB - 4096))
        monkeypatch.setenv("TMPDIR", str(disk))
        with pytest.raises(MountError, match="cannot write the image of its names: No space left"):
            mounted(packed, point)
    assert not point.exists()


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EPERM, errno.ENOSYS])
def test_a_kernel_that_cannot(
    number: int, packed: Path, folder: Path, tmp_path: Path, point: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(erofs, "_call", call)
    with pytest.raises(MountError, match=re.escape(erofs.WHY[number])):
        mounted(packed, point)
    fffs.mount.mount(packed, point, options=MountOptions(kernel=None, log=str(tmp_path / "log")))
    assert mount_at(str(point)).type == "fuse.fffs"  # type: ignore[union-attr]
    assert describe(point) == describe(folder)


@pytest.mark.usefixtures("without_files")
def test_no_loop_devices(packed: Path, point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erofs, "CONTROL", "/dev/nothing")
    with pytest.raises(MountError, match="the kernel cannot mount it: No such file"):
        mounted(packed, point)
    assert not point.exists()


# ---------------------------------------------------------------- killed at any moment


@pytest.mark.parametrize("loop", [False, True], ids=["file", "loop"])
def test_killed_at_any_call_nothing_is_left_but_a_complete_mount(
    loop: bool, packed: Path, point: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loop:
        monkeypatch.setenv("TMPDIR", "/dev/shm")
    before = loops_of(packed.parent)
    images = set(os.listdir("/var/tmp"))
    command = ["mount", packed, point, "-o", "kernel"]
    with prepared(tmp_path) as process:
        names = {call.name for call in process.trace(*command, calls=CALLS).calls}
        fffs.mount.umount(point)
        assert names >= {"fsopen", "move_mount"} | ({"ioctl"} if loop else set())
        for name in sorted(names):
            number, killed = 0, True
            while killed:  # strace counts the calls of each thread
                number += 1
                outcome = process.trace(*command, calls=CALLS, inject=f"{name}:signal=KILL:when={number}")
                killed = outcome.code == -signal.SIGKILL
                assert killed or outcome.code == 0
                if is_mounted(point):
                    assert (point / "a").read_bytes() == b"the first file\n"
                    fffs.mount.umount(point)
                assert mounts_below(tmp_path) == []
                wait_until(lambda: loops_of(packed.parent) == before)
                assert set(os.listdir("/var/tmp")) == images
