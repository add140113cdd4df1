"""Packs under fs-verity. The kernel's part is imitated here; scripts/verity-vm tries a kernel that has it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inside import AtomicFile, LocalFile, atomic, kernel_mount, leftovers, run_program, verity
from mounting import describe, detach_all
from test_mount_tree import make_folder

import fffs
import fffs.granular
import fffs.mount
from fffs.errors import FffsError, MountError, RecordError, UsageError, WriteError
from fffs.mount import MountOptions

BLOCK = 4096
OTHER = "sha256:" + "0" * 64  # the digest of no file
ENABLE, MEASURE = 0x40806685, 0xC0046686  # as strace shows them for fsverity(1)


def digest_of(data: bytes) -> str:
    """The digest as the kernel's Documentation/filesystems/fsverity.rst defines it, without a salt."""

    def hashes(level: bytes) -> bytes:
        blocks = (level[at : at + BLOCK].ljust(BLOCK, b"\0") for at in range(0, len(level), BLOCK))
        return b"".join(hashlib.sha256(block).digest() for block in blocks)

    root = hashes(data) if data else bytes(32)
    while len(root) > 32:
        root = hashes(root)
    descriptor = struct.pack("<BBBBIQ64s32s144x", 1, 1, 12, 0, 0, len(data), root, b"")
    return "sha256:" + hashlib.sha256(descriptor).hexdigest()


class Kernel:
    """Imitates the two calls. ``before`` is called when a file is about to be protected."""

    def __init__(self) -> None:
        self.digests: dict[tuple[int, int], str] = {}
        self.fails = 0
        self.before: Callable[[int], object] = lambda _fd: None
        self._ioctl = fcntl.ioctl

    def ioctl(self, fd: int, request: int, argument: Any = 0, *rest: Any) -> Any:
        if request == ENABLE:
            return self.enable(fd, argument)
        return self.measure(fd, argument) if request == MEASURE else self._ioctl(fd, request, argument, *rest)

    def enable(self, fd: int, argument: bytes) -> int:
        self._fail()
        assert argument == struct.pack("=4I5Q", 1, 1, BLOCK, 0, 0, 0, 0, 0, 0).ljust(128, b"\0")
        self.before(fd)
        if self._is_written(fd):
            raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))
        self.digests[self._key(fd)] = self._digest(fd)
        return 0

    def measure(self, fd: int, buffer: bytearray) -> int:
        if self.fails in (errno.EOPNOTSUPP, errno.ENOTTY):
            self._fail()
        if stat.S_ISDIR(os.fstat(fd).st_mode) or self.digests.get(self._key(fd)) != self._digest(fd):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))  # another file may have got the number
        digest = bytes.fromhex(self._digest(fd).removeprefix("sha256:"))
        assert struct.unpack_from("=HH", buffer) == (0, len(buffer) - 4)
        buffer[: 4 + len(digest)] = struct.pack("=HH", 1, len(digest)) + digest
        return 0

    def _fail(self) -> None:
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))

    @staticmethod
    def _key(fd: int) -> tuple[int, int]:
        return os.fstat(fd).st_dev, os.fstat(fd).st_ino

    @staticmethod
    def _digest(fd: int) -> str:
        return digest_of(os.pread(fd, os.fstat(fd).st_size, 0))

    def _is_written(self, fd: int) -> bool:
        for other in map(int, os.listdir("/proc/self/fd")):
            try:
                flags = fcntl.fcntl(other, fcntl.F_GETFL)
            except OSError:
                continue
            if self._key(other) == self._key(fd) and flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_PATH:
                return True
        return False


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(fcntl, "ioctl", kernel.ioctl)
    return kernel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "folder")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return tmp_path / "p.ffr"


def kept(pack: Path) -> Path:
    return pack.with_name(pack.name + ".fsverity")


def is_protected(pack: Path) -> bool:
    with LocalFile.open(pack) as file:
        return verity.look(file).measured == digest_of(pack.read_bytes())


def left_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != "folder")


# ---------------------------------------------------------------- the digest


SIZES = {
    0: "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95",
    BLOCK: "sha256:cd0875ca59c7d37e962c5e8f5acd3770750ac80225e2df652ce5672fd34500af",
    BLOCK + 1: "sha256:2901b849fda2d91e3929524561c4a47e77bb64734319759507b2029f18b9cc52",
    128 * BLOCK: "sha256:26b7c190a34e19f420808ee7ec233b09fa6c34543b5a9d2950530114c205d14f",
    128 * BLOCK + 1: "sha256:316835d9be1c95b5cd55d07ae7965d651689efad186e26cbf680e40b683a3262",
    128 * 128 * BLOCK + 1: "sha256:7c0a37bfb65cd6d77aa14217afc6c498af6dcc1be52b80486f527871896006e2",
}


@pytest.mark.parametrize("size", SIZES)
def test_the_digest_is_that_of_the_tool(size: int, tmp_path: Path) -> None:
    """The digests are those that fsverity 1.5 printed for files of bytes of 1."""
    data = b"\1" * size
    assert digest_of(data) == SIZES[size]
    if shutil.which("fsverity"):
        (tmp_path / "data").write_bytes(data)
        assert subprocess.check_output(["fsverity", "digest", tmp_path / "data"], text=True).split()[0] == SIZES[size]


# ---------------------------------------------------------------- pack


def test_a_pack_is_protected_and_its_digest_is_kept(kernel: Kernel, folder: Path, pack: Path) -> None:
    assert run_program(["pack", "--align", "--verity", str(folder), str(pack)]) == 0
    assert is_protected(pack)
    assert kept(pack).read_text() == digest_of(pack.read_bytes()) + "\n"
    assert left_in(pack.parent) == ["p.ffr", "p.ffr.fsverity"]
    fffs.pack_folder(folder, pack.with_name("plain.ffr"), align=True)
    assert pack.read_bytes() == pack.with_name("plain.ffr").read_bytes()


def test_a_new_pack_replaces_a_protected_one_and_its_digest(kernel: Kernel, folder: Path, pack: Path) -> None:
    fffs.pack_folder(folder, pack, verity=True)
    before = kept(pack).read_text()
    pack.chmod(0o640)
    (folder / "new").write_bytes(b"new")
    fffs.pack_folder(folder, pack, verity=True)
    assert before != kept(pack).read_text() == digest_of(pack.read_bytes()) + "\n"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (pack, kept(pack))] == [0o640, 0o640]
    fffs.pack_folder(folder, pack)
    assert not is_protected(pack)
    assert left_in(pack.parent) == ["p.ffr"], "a digest does not outlive its pack"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOTTY])
def test_what_is_missing_is_said_before_any_work(
    number: int, kernel: Kernel, folder: Path, pack: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pack.write_bytes(b"old")
    kernel.fails = number
    (folder / "a").chmod(0)
    for command in (["pack"], ["convert", "--force"]):
        assert run_program([*command, "--verity", str(folder), str(pack)]) == 2
        said = capfd.readouterr().err
        assert said.startswith(f"fffs: {pack}: this file system has no fs-verity") and said.count("\n") == 1
        assert "tune2fs -O verity" in said and "CONFIG_FS_VERITY" in said
    assert (pack.read_bytes(), left_in(pack.parent)) == (b"old", ["p.ffr"])


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.EINVAL, UsageError, "4096 bytes"),
        (errno.ENOPKG, WriteError, "fs-verity cannot be enabled"),
        (errno.EOPNOTSUPP, UsageError, "tune2fs"),
    ],
)
def test_a_pack_that_cannot_be_protected_is_not_put_in_place(
    number: int, error: type[FffsError], message: str, kernel: Kernel, folder: Path, pack: Path
) -> None:
    fffs.pack_folder(folder, pack, verity=True)
    before = pack.read_bytes(), kept(pack).read_bytes()
    (folder / "new").write_bytes(b"new")
    kernel.before = lambda _fd: setattr(kernel, "fails", number) or kernel._fail()  # type: ignore[func-returns-value]
    with pytest.raises(error, match=message):
        fffs.pack_folder(folder, pack, verity=True)
    kernel.fails = 0
    assert (pack.read_bytes(), kept(pack).read_bytes()) == before
    assert is_protected(pack) and left_in(pack.parent) == ["p.ffr", "p.ffr.fsverity"]


def test_a_pack_that_another_process_writes_to_is_not_protected(kernel: Kernel, folder: Path, pack: Path) -> None:
    opened: list[int] = []
    kernel.before = lambda fd: opened.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
    with pytest.raises(WriteError, match=r"fs-verity cannot be enabled\): Text file busy"):
        fffs.pack_folder(folder, pack, verity=True)
    os.close(opened[0])
    assert left_in(pack.parent) == []


def test_damage_before_the_hashes_were_computed_is_not_protected(kernel: Kernel, folder: Path, pack: Path) -> None:
    def damage(fd: int) -> None:
        at = os.pread(fd, os.fstat(fd).st_size, 0).index(b"the first file")
        writer = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        os.pwrite(writer, b"T", at)
        os.close(writer)

    kernel.before = damage
    with pytest.raises(RecordError, match=r"p.ffr: record \d+: checksum mismatch .*: it was damaged during writing"):
        fffs.pack_folder(folder, pack, verity=True)
    assert left_in(pack.parent) == []


def test_a_digest_that_cannot_be_written(kernel: Kernel, folder: Path, pack: Path) -> None:
    pack.write_bytes(b"old")
    kept(pack).mkdir()
    with pytest.raises(WriteError, match=r"p.ffr.fsverity"):
        fffs.pack_folder(folder, pack, verity=True)
    assert pack.read_bytes() == b"old"


def test_killed_between_pack_and_digest_a_protected_pack_is_left(
    kernel: Kernel, folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(pack).write_text("sha256:of another pack\n")
    pack.write_bytes(b"old")
    commit = AtomicFile.commit

    def killed(file: AtomicFile) -> None:
        if file.path.endswith(".fsverity"):
            raise KeyboardInterrupt
        commit(file)

    monkeypatch.setattr(AtomicFile, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        fffs.pack_folder(folder, pack, verity=True)
    assert is_protected(pack) and left_in(pack.parent) == ["p.ffr"]


@pytest.mark.parametrize("writer", ["pack", "records"])
@pytest.mark.parametrize("renamed", ["between", "after"])
def test_the_digest_of_a_pack_that_is_replaced_meanwhile_is_not_beside_another(
    writer: str, renamed: str, kernel: Kernel, folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer takes the name before the digest has its own, or looked for an older digest before that."""
    protecting, take_name = [True], AtomicFile._take_name

    def write_another() -> None:
        if writer == "pack":
            fffs.pack_folder(folder, pack)
        else:
            with fffs.FileWriter(pack, 1) as file:
                file.write_one(b"record")

    def take_late(file: AtomicFile) -> None:
        if renamed == "after" and file.path == str(pack) and protecting:
            protecting.clear()
            fffs.pack_folder(folder, pack, verity=True)
            assert kept(pack).exists()
        elif file.path == str(kept(pack)) and protecting:
            protecting.clear()
            write_another()
        take_name(file)

    monkeypatch.setattr(AtomicFile, "_take_name", take_late)
    if renamed == "after":
        write_another()
    else:
        fffs.pack_folder(folder, pack, verity=True)
    assert not protecting and not is_protected(pack)
    assert left_in(pack.parent) == ["p.ffr"]


def test_the_digest_of_an_older_pack_is_not_packed(kernel: Kernel, folder: Path) -> None:
    pack = folder / "p.ffr"
    fffs.pack_folder(folder, pack, verity=True)
    (folder / f".{kept(pack).name}.0123456789ab.fffs-tmp").touch()  # left by a killed writer
    fffs.pack_folder(folder, pack)
    with fffs.PackedFolder(pack) as packed:
        assert not [name for name in packed.list() if "p.ffr" in name]


def test_a_file_that_waits_for_its_protection_is_no_leftover(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "x") as file:
        os.write(file.fd, b"content")
        file.end_writing()
        leftovers.remove_leftover_files(file.folder, b"x")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file.fd, b"more")
        file.commit()
    assert (tmp_path / "x").read_bytes() == b"content"


# ---------------------------------------------------------------- convert


def test_what_becomes_a_pack_can_be_protected(kernel: Kernel, folder: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-cf", tmp_path / "t.tar", "-C", folder, "."], check=True)
    fffs.pack_folder(folder, tmp_path / "plain.ffr")
    with fffs.granular.DatasetWriter(tmp_path / "set", {"a": "utf8", "b": "int"}) as writer:
        writer.append({"a": "text", "b": 1})
    for source in (folder, tmp_path / "t.tar", tmp_path / "plain.ffr", tmp_path / "set"):
        for align in (False, True):
            pack = tmp_path / "p.ffr"
            fffs.convert(source, pack, verity=True, align=align, verify=True, force=True)
            assert is_protected(pack)
            assert kept(pack).read_text() == digest_of(pack.read_bytes()) + "\n"
    assert (tmp_path / "p.ffr.fsverity").exists()
    fffs.convert(tmp_path / "plain.ffr", tmp_path / "p.ffr", verity=True, force=True)
    assert (tmp_path / "p.ffr").read_bytes() == (tmp_path / "plain.ffr").read_bytes()


@pytest.mark.parametrize("target", ["records.tfrecord", "other.ffr", "set"])
def test_only_packed_folders_can_be_protected(target: str, kernel: Kernel, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "records.ffr", 1) as writer:
        writer.write_one(b"record")
    with pytest.raises(UsageError, match="omit --verity"):
        to = "granular" if target == "set" else None
        fffs.convert(tmp_path / "records.ffr", tmp_path / target, verity=True, to=to)


@pytest.mark.parametrize("there", [True, False])
def test_without_force_no_digest_is_removed(there: bool, folder: Path, pack: Path) -> None:
    """Also that of a file which does not exist yet, or does not exist any more."""
    kept(pack).write_text(OTHER)
    if there:
        pack.write_bytes(b"old")
    with pytest.raises(UsageError, match=r"already exists.*; --force"):
        fffs.convert(folder, pack)
    assert kept(pack).read_text() == OTHER and pack.exists() == there
    fffs.convert(folder, pack, force=True)
    assert left_in(pack.parent) == ["p.ffr"]


def test_a_file_that_appears_meanwhile_keeps_its_digest(
    folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment: a killed process cannot bring it back."""
    commit, moved = AtomicFile.commit, []

    def commit_late(file: AtomicFile) -> None:
        pack.write_bytes(b"new")
        kept(pack).write_text(OTHER)
        commit(file)

    monkeypatch.setattr(AtomicFile, "commit", commit_late)
    monkeypatch.setattr(atomic.Aside, "move", lambda aside: moved.append(aside))
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        fffs.convert(folder, pack)
    assert (pack.read_bytes(), kept(pack).read_text(), moved) == (b"new", OTHER, [])


def test_digests_beside_parts_are_no_other_files(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    with fffs.FileWriter(tmp_path / "parts" / "a.ffr", 1) as writer:
        writer.write_one(b"record")
    (tmp_path / "parts" / "a.ffr.fsverity").write_text("sha256:00\n")
    assert fffs.convert(tmp_path / "parts", tmp_path / "all.tfrecord").items == 1


# ---------------------------------------------------------------- what is known of a pack


def test_info_and_verify_tell_what_protects_a_pack(
    kernel: Kernel, folder: Path, pack: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def facts(path: Path) -> Any:
        assert run_program(["info", "--json", str(path)]) == 0
        return json.loads(capfd.readouterr().out).get("fs_verity")

    fffs.pack_folder(folder, pack, verity=True)
    digest = digest_of(pack.read_bytes())
    assert facts(pack) == [f"{digest}, as kept"]
    assert run_program(["verify", str(pack)]) == 0
    assert f"p.ffr: fs-verity: {digest}, as kept\n" in capfd.readouterr().out
    os.symlink(pack, pack.with_name("link.ffr"))
    assert facts(pack.with_name("link.ffr")) == [f"{digest}, as kept"]
    kept(pack).write_text(f"{digest} p.ffr\n")  # as `fsverity measure` prints it
    assert facts(pack) == [f"{digest}, as kept"]
    kept(pack).write_text(f"{OTHER}\n")
    assert facts(pack) == [f"{digest}, but {OTHER} is kept"]
    kept(pack).unlink()
    assert facts(pack) == [f"{digest}, not kept"]
    shutil.copy(pack, pack.with_name("copy.ffr"))
    assert facts(pack.with_name("copy.ffr")) is None
    kept(pack.with_name("copy.ffr")).write_text(OTHER)
    assert facts(pack.with_name("copy.ffr")) == [f"no, although the digest {OTHER} is kept"]


def made_link(path: Path) -> None:
    path.with_name("secret").write_text(OTHER)
    path.symlink_to("secret")


UNUSABLE = {
    "link": (made_link, "is a symbolic link"),
    "fifo": (os.mkfifo, "cannot be read: not a regular file"),
    "folder": (Path.mkdir, "cannot be read: not a regular file"),
    "no digest": (lambda path: path.write_text("root:secret:19000\n"), "cannot be read: it has no digest"),
    "too short": (lambda path: path.write_text(OTHER[:-1]), "cannot be read: it has no digest"),
    "too long": (lambda path: path.write_text(OTHER + "0"), "cannot be read: it has no digest"),
    "endless": (lambda path: (path.touch(), os.truncate(path, 1 << 40)), "cannot be read: it has no digest"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_is_beside_a_pack_is_only_shown_if_it_is_a_digest(
    kind: str, folder: Path, pack: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And hides neither the result of a verification nor the description of the pack."""
    fffs.pack_folder(folder, pack)
    make, message = UNUSABLE[kind]
    make(kept(pack))
    for command in ("verify", "info"):
        assert run_program([command, str(pack)]) == 0
        said = capfd.readouterr()
        assert f"no; {kept(pack)}: {message}; replace it" in said.out and not said.err
        assert ("ok: " in said.out) == (command == "verify")
        assert OTHER not in said.out and "secret" not in said.out


def test_a_digest_that_may_not_be_read_hides_no_result(
    folder: Path, pack: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fffs.pack_folder(folder, pack)
    open_ = os.open

    def refuse(path: Any, *rest: Any, **named: Any) -> int:
        if str(path) == str(kept(pack)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    for command in ("verify", "info"):
        assert run_program([command, str(pack)]) == 0
        assert f"no; {kept(pack)}: cannot be read: Permission denied; " in capfd.readouterr().out


# ---------------------------------------------------------------- mount -o kernel


BY_ROOT = [pytest.mark.fuse, pytest.mark.skipif(os.geteuid() != 0, reason="only root can let the kernel mount a pack")]


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "mnt"
    detach_all(tmp_path)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were verified before they were mounted."""
    found: list[str] = []
    verify = kernel_mount.verify

    def note(source: Any, *rest: Any) -> Any:
        found.extend(os.path.basename(file.index.path) for file in source.store.files)
        return verify(source, *rest)

    monkeypatch.setattr(kernel_mount, "verify", note)
    return found


def mount(pack: Path | list[Path], point: Path, **options: Any) -> None:
    fffs.mount.mount(pack, point, options=MountOptions(**{"kernel": True, "allow_other": True} | options))


@pytest.mark.usefixtures("kernel")
class TestMounts:
    pytestmark = BY_ROOT

    def test_a_pack_with_the_digest_that_is_kept_is_not_verified_again(
        self, folder: Path, pack: Path, point: Path, verified: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        fffs.pack_folder(folder, pack, align=True, verity=True)
        mount(pack, point)
        assert describe(point) == describe(folder)
        assert verified == []
        assert caplog.messages == [
            f"{pack}: mounted without a daemon: the digest is the one that is kept, and fs-verity verifies what is "
            "read from the disk; there are no counters and no log"
        ]

    @pytest.mark.parametrize("checked", [True, False])
    def test_what_other_mounts_give_up_is_said(
        self,
        checked: bool,
        folder: Path,
        pack: Path,
        point: Path,
        verified: list[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        fffs.pack_folder(folder, pack, align=True)
        mount(pack, point, verify=checked)
        assert verified == ["p.ffr"] * checked
        before = "records were verified" if checked else "no record was verified"
        assert f"{before}, and nothing is verified while it is read; there are no counters and no log" in caplog.text

    def test_without_a_kept_digest_a_protected_pack_is_verified(
        self, folder: Path, pack: Path, point: Path, verified: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        fffs.pack_folder(folder, pack, align=True, verity=True)
        kept(pack).unlink()
        mount(pack, point)
        assert verified == ["p.ffr"]
        assert "records were verified, and fs-verity verifies what is read from the disk" in caplog.text

    @pytest.mark.parametrize("checked", [True, False])
    def test_another_file_than_the_one_whose_digest_is_kept_is_refused(
        self, checked: bool, folder: Path, pack: Path, point: Path
    ) -> None:
        fffs.pack_folder(folder, pack, align=True, verity=True)
        shutil.copy(pack, pack.with_name("copy.ffr"))
        shutil.copy(kept(pack), kept(pack.with_name("copy.ffr")))
        with pytest.raises(MountError, match=r"copy.ffr: not under fs-verity, .*; run fsverity enable .*, or remove"):
            mount(pack.with_name("copy.ffr"), point, verify=checked)
        (folder / "new").write_bytes(b"new")
        fffs.pack_folder(folder, pack.with_name("other.ffr"), align=True, verity=True)
        os.replace(pack.with_name("other.ffr"), pack)
        with pytest.raises(
            MountError, match=r"p.ffr: its digest sha256:\w+ is not the one in .*; restore it, or remove"
        ):
            mount(pack, point, verify=checked)
        assert not point.exists()

    @pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOTTY])
    def test_without_fs_verity_nobody_is_asked_to_enable_it(
        self, number: int, kernel: Kernel, folder: Path, pack: Path, point: Path
    ) -> None:
        fffs.pack_folder(folder, pack, align=True)
        kept(pack).write_text(OTHER)
        kernel.fails = number
        with pytest.raises(MountError, match=rf"has a digest; remove {kept(pack)}$") as caught:
            mount(pack, point)
        assert "fsverity enable" not in str(caught.value)

    def test_a_digest_that_cannot_be_used_is_no_missing_one(self, folder: Path, pack: Path, point: Path) -> None:
        fffs.pack_folder(folder, pack, align=True)
        kept(pack).write_text("damaged")
        with pytest.raises(MountError, match=r"p.ffr.fsverity: cannot be read: it has no digest; replace it"):
            mount(pack, point)

    def test_a_union_is_verified_unless_all_digests_are_kept(
        self, folder: Path, pack: Path, point: Path, verified: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        fffs.pack_folder(folder, pack, align=True, verity=True)
        fffs.pack_folder(folder, pack.with_name("plain.ffr"), align=True)
        mount([pack, pack.with_name("plain.ffr")], point)
        assert verified == ["p.ffr", "plain.ffr"]
        assert "records were verified, and nothing is verified while it is read" in caplog.text


# ---------------------------------------------------------------- this kernel


def test_this_kernel_protects_a_pack_or_says_what_it_lacks(folder: Path, pack: Path) -> None:
    try:
        fffs.pack_folder(folder, pack, verity=True)
    except UsageError as error:
        assert "fs-verity" in str(error)
        assert left_in(pack.parent) == []
    else:
        assert is_protected(pack)
        assert kept(pack).read_text() == digest_of(pack.read_bytes()) + "\n"
        with pytest.raises(PermissionError):
            pack.open("r+b")
