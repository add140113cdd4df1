"""Compares a mount with the plain folder, its model: random calls on both must give the same results and errors.

``grow`` makes a random folder. Run as a program, this file is one process that compares: it exits with code 1 and names
the first call that differed. An example depends only on its number, so it can be repeated alone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import struct
import sys
import tempfile
import termios
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mounting import libc, list_from

MIB = 1 << 20
STEPS = 25
SIZES = (0, 1, 100, 4095, 4096, 4097, 70_000, 131_072, MIB - 1, MIB, MIB + 1, 2 * MIB + 4096, 3 * MIB + 17)
TIMES = (0, 1, -1, 999_999_999, 1_700_000_000_123_456_789, -1_500_000_000_500_000_000, 2**31 * 10**9 + 5)
AT_FDCWD, AT_EMPTY_PATH, NOFOLLOW, FORCE_SYNC, DONT_SYNC = -100, 0x1000, 0x100, 0x2000, 0x4000
# For mount(2), which then drops all cached names: the flags that the mount already has.
REMOUNT = 32 | 1 | 2 | 4 | 1024


# ---------------------------------------------------------------- a random folder


def grow(folder: Path, seed: int, entries: int = 120) -> Path:
    """Make a folder with everything that can be packed, including unusual names and links."""
    rng = random.Random(f"tree {seed}")
    root = os.fsencode(folder)
    os.mkdir(root)
    folders, files = [root], [os.path.join(root, b"first")]
    _write(files[0], rng.randbytes(5000))
    for _ in range(20):  # deep nesting
        folders.append(os.path.join(folders[-1] if rng.random() < 0.9 else root, _name(rng, 20)))
        os.mkdir(folders[-1])
    while entries := entries - 1:
        path = os.path.join(rng.choice(folders), _name(rng))
        kind = rng.choices(("file", "folder", "symlink", "link"), (5, 2, 3, 1))[0]
        with contextlib.suppress(FileExistsError):
            if kind == "file":
                size = rng.choices((rng.randrange(10_000), rng.choice(SIZES)), (3, 1))[0]
                _write(path, bytes(size) if rng.random() < 0.1 else rng.randbytes(size))
                files.append(path)
            elif kind == "folder":
                os.mkdir(path)
                folders.append(path)
            elif kind == "symlink":
                os.symlink(_target(rng, path, root, folders + files), path)
            else:
                os.link(rng.choice(files), path)
    for path in files:
        os.chmod(path, rng.choice((0o644, 0o600, 0o444, 0o755, 0o400, 0o4755, 0o2711, 0o777)))
    for path in reversed(list(_walk(root))):
        os.utime(path, ns=(0, rng.choice(TIMES)), follow_symlinks=False)
    for path in reversed(folders):
        os.chmod(path, rng.choice((0o755, 0o700, 0o500, 0o1777, 0o2755, 0o555)))
        os.utime(path, ns=(0, rng.choice(TIMES)))
    return folder


def _write(path: bytes, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)


def _name(rng: random.Random, most: int = 255) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:  # bytes, rarely valid UTF-8
        name = bytes(rng.randrange(1, 256) for _ in range(rng.randrange(1, 12))).replace(b"/", b"\\")
    elif kind == 1:
        name = "".join(rng.choices("aé\u4e2d\U0001f4c1\u0301 \n\t'\"\\*?-", k=rng.randrange(1, 8))).encode()
    else:
        name = f"{rng.choice(('file', 'Folder', '.hidden', 'a b'))}{rng.randrange(1000)}".encode()
    if rng.random() < 0.05:
        name = name.ljust(most, b"n")
    return b"dots" if name in (b".", b"..") else name[:most]


def _target(rng: random.Random, link: bytes, root: bytes, known: list[bytes]) -> bytes:
    where = os.path.dirname(link)
    return rng.choice(
        (
            os.path.relpath(rng.choice(known), where),
            os.path.relpath(rng.choice(known), where),
            rng.choice(known),  # absolute, outside the mount
            os.path.relpath(rng.choice(known), where) + b"/",
            b"nowhere",
            b"/nowhere/at all",
            b"..",
            b".",
            b"./" * 500 + b"first",
            os.path.basename(link),  # itself
            b"x" * 300,
        )
    )


def _walk(folder: bytes) -> Iterator[bytes]:
    yield folder
    with os.scandir(folder) as entries:
        children = sorted((entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for path, is_dir in children:
        if is_dir:
            yield from _walk(path)
        else:
            yield path


# ---------------------------------------------------------------- calls, each on one of the two folders


def _status(status: os.stat_result) -> dict[str, Any]:
    is_dir = stat.S_ISDIR(status.st_mode)
    return {
        "identity": (status.st_dev, status.st_ino),
        "mode": oct(status.st_mode),
        "links": status.st_nlink,
        "size": None if is_dir else status.st_size,
        "mtime": status.st_mtime_ns,
        "owner": (status.st_uid, status.st_gid),
        "block": status.st_blksize,
    }


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _statx(fd: int, path: bytes, flags: int) -> dict[str, Any]:
    buffer = ctypes.create_string_buffer(256)
    _check(libc.statx(fd, path, flags, 0x7FF, buffer))
    links, uid, gid, mode = struct.unpack_from("<IIIH", buffer.raw, 16)
    inode, size = struct.unpack_from("<QQ", buffer.raw, 32)
    seconds, fraction = struct.unpack_from("<qI", buffer.raw, 112)
    major, minor = struct.unpack_from("<II", buffer.raw, 136)
    return {
        "identity": (os.makedev(major, minor), inode),
        "mode": oct(mode),
        "links": links,
        "size": None if stat.S_ISDIR(mode) else size,
        "mtime": seconds * 10**9 + fraction,
        "owner": (uid, gid),
    }


def _listing(fd: int, rng_seed: int) -> list[tuple[bytes, int]]:
    """List a folder in pieces of odd sizes, and once more from an offset in the middle."""
    rng = random.Random(rng_seed)
    entries: list[tuple[bytes, int, int]] = []
    offset = 0
    while part := list_from(fd, offset, rng.choice((300, 512, 1000, 32768))):
        entries += part
        offset = part[-1][2]
        assert len(entries) < 100_000, "a listing without an end"
    if not entries:
        raise AssertionError("a folder without itself")
    k = rng.randrange(len(entries))
    rest = [name for name, _, _ in list_from(fd, entries[k][2], 1 << 20)]
    assert rest == [name for name, _, _ in entries[k + 1 :]], f"continued after {entries[k][0]!r}: {rest}"
    assert len({name for name, _, _ in entries}) == len(entries), "a name twice"
    device = os.fstat(fd).st_dev
    for name, inode, _ in entries:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        # The parent of a mount point is on another file system, whose inode number the listing cannot know.
        assert status.st_ino == inode or status.st_dev != device, f"{name!r} is {status.st_ino}, listed as {inode}"
    os.lseek(fd, 0, os.SEEK_SET)
    return sorted((name, inode) for name, inode, _ in entries)


def _mapped(fd: int, start: int, size: int, private: bool) -> bytes:
    length = os.fstat(fd).st_size
    flags, protection = (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) if private else (mmap.MAP_SHARED, 1)
    with mmap.mmap(fd, 0, flags, protection) as view:
        data = view[start : start + size]
        if private and length:
            view[start % length] = 7
    return data


def _preadv(fd: int, sizes: tuple[int, ...], offset: int) -> bytes:
    buffers = [bytearray(size) for size in sizes]
    got = os.preadv(fd, buffers, offset)
    return b"".join(buffers)[:got]


def _sent(fd: int, offset: int | None, size: int) -> bytes:
    with tempfile.TemporaryFile(buffering=0) as file:
        sent = os.sendfile(file.fileno(), fd, offset, size)  # type: ignore[arg-type]
        file.seek(0)
        data = file.read()
        assert len(data) == sent
    return data


def _spliced(fd: int, size: int) -> bytes:
    ours, its = os.pipe()
    try:
        got = os.splice(fd, its, min(size, 60_000))
        return os.read(ours, got) if got else b""
    finally:
        os.close(ours)
        os.close(its)


def _from_inside(fd: int, path: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call with the folder as the current one."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchdir(fd)
        return _status(os.stat(b".")), _status(os.lstat(path))
    finally:
        os.fchdir(here)
        os.close(here)


def _sought(fd: int, offset: int, whence: int) -> int | None:
    """Seek, except in folders, whose offsets only their own file system can interpret: see ``_listing``."""
    is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
    return None if is_folder and (offset or whence) else os.lseek(fd, offset, whence)


def _waiting(fd: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])


def _short_readlink(fd: int, path: bytes, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    return buffer.raw[: _check(libc.readlinkat(fd, path, buffer, size))]


def _is_reachable(fd: int, path: bytes, mode: int, flags: int) -> int:
    return _check(libc.faccessat(fd, path, mode, flags))


def _limits(path: bytes) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_namemax, found.f_bsize


# ---------------------------------------------------------------- an example


class Difference(AssertionError):  # noqa: N818 - no error of the program
    """The mount differs from its model."""


def _has_attributes(mounted: bytes) -> bool:
    try:
        return bool(os.listxattr(mounted))
    except OSError:
        return False


class Example:
    """A sequence of calls that depends only on its number. ``run`` raises Difference."""

    def __init__(self, number: int, plain: bytes, mounted: bytes, paths: list[bytes]) -> None:
        self._rng = random.Random(f"example {number}")
        self._roots = plain, mounted
        self._has_attributes = _has_attributes(mounted)
        self._paths = paths
        self._fds: list[tuple[int, int]] = []
        self._twins: dict[Any, Any] = {}
        self.history: list[str] = []

    def run(self, steps: int = STEPS) -> None:
        rng = self._rng
        try:
            for _ in range(steps):
                # Opening is frequent, because an example without open files would test little.
                rng.choice((self._open, self._open_below, self._by_name, self._by_fd, self._by_fd, self._by_fd))()
        finally:
            for pair in self._fds:
                for fd in pair:
                    os.close(fd)

    # ------------------------------------------------------------ random choices

    def _path(self) -> bytes:
        """Return a path from the root, which usually exists."""
        rng, path = self._rng, self._rng.choice(self._paths)
        if rng.random() < 0.75:
            return path
        at = rng.randrange(len(path) + 1)
        return rng.choice(
            (
                path + b"/",
                path + b"/.",
                path + b"/..",
                path + b"//.//",
                b"./" + path,
                path + b"/nothing",
                path[:at] + b"x" + path[at:],
                path[:at],
                path + b"n" * 256,
                path.swapcase(),
                b"./" * 2100 + path,
                path.replace(b"/", b"/../", 1),
            )
        ).lstrip(b"/")

    def _flags(self) -> int:
        rng, flags = self._rng, os.O_RDONLY
        for flag in (os.O_DIRECTORY, os.O_NOFOLLOW, os.O_PATH, os.O_NONBLOCK, os.O_NOATIME):
            if rng.random() < 0.15:
                flags |= flag
        return flags

    def _place(self) -> int:
        rng, size = self._rng, self._rng.choice(SIZES)
        return max(rng.choice((0, 0, size, size - 1, rng.randrange(size + 1), rng.randrange(4 * MIB), -1)), -1)

    def _size(self) -> int:
        return self._rng.choice((0, 1, 10, 4095, 4096, 4097, 65_536, 131_072, MIB, MIB + 1, 3 * MIB))

    # ------------------------------------------------------------ calls

    def _open(self) -> None:
        path, flags = self._path(), self._flags()
        self._opened("open", lambda k: os.open(os.path.join(self._roots[k], path), flags), path, flags)

    def _open_below(self) -> None:
        if self._fds:
            folder, path, flags = self._rng.choice(self._fds), self._path(), self._flags()
            if self._rng.random() < 0.5:
                path = os.path.basename(path) or b"."
            self._opened("openat", lambda k: os.open(path, flags, dir_fd=folder[k]), path, flags)

    def _opened(self, name: str, call: Callable[[int], int], *arguments: Any) -> None:
        results = [_outcome(lambda k=k: call(k)) for k in (0, 1)]  # type: ignore[misc]
        fds = [result for result in results if isinstance(result, int)]
        if len(fds) == 2:
            self._fds.append((fds[0], fds[1]))
            self._compare(name, arguments, ["opened", "opened"])
        else:
            for fd in fds:
                os.close(fd)
            self._compare(name, arguments, results)

    def _by_name(self) -> None:
        rng, path = self._rng, self._path()
        full = [os.path.join(root, path) for root in self._roots]
        flags = rng.choice((0, NOFOLLOW)) | rng.choice((0, FORCE_SYNC, DONT_SYNC))
        mode, size = rng.choice((os.F_OK, os.R_OK, os.X_OK, os.R_OK | os.X_OK)), rng.choice((1, 10, 5000))
        attribute = rng.choice(("user.none", "trusted.none", "security.none", "user.fffs.none"))
        follow = rng.random() < 0.5
        calls: dict[str, Callable[[bytes], Any]] = {
            "stat": lambda p: _status(os.stat(p)),
            "lstat": lambda p: _status(os.lstat(p)),
            "statx": lambda p: _statx(AT_FDCWD, p, flags),
            "readlink": os.readlink,
            "short readlink": lambda p: _short_readlink(AT_FDCWD, p, size),
            "access": lambda p: _is_reachable(AT_FDCWD, p, mode, 0),
            "faccessat": lambda p: _is_reachable(AT_FDCWD, p, mode, rng.choice((0x200, 0x100))),
            "listdir": lambda p: sorted(os.listdir(p)),
            "scandir": _scandir,
            "statvfs": _limits,
            "getxattr": lambda p: os.getxattr(p, attribute, follow_symlinks=follow),
            "open and read": lambda p: Path(os.fsdecode(p)).read_bytes(),
        }
        if not self._has_attributes:
            del calls["getxattr"]  # fails with ENOTSUP
        name = rng.choice(list(calls))
        state = rng.getstate()
        results = []
        for path_of_one in full:
            rng.setstate(state)
            results.append(_outcome(lambda p=path_of_one: calls[name](p)))  # type: ignore[misc]
        self._compare(name, (path, flags, mode, attribute), results)
        if name == "lstat" and isinstance(results[1], dict) and self._has_attributes:
            self._attributes(full)

    def _attributes(self, full: list[bytes]) -> None:
        """Check the extended attributes, which the plain folder does not have."""
        status = os.lstat(full[1])
        if not stat.S_ISREG(status.st_mode) or full[0] == full[1]:
            return
        with contextlib.suppress(OSError):  # the path leads out of the mount
            if os.lstat(full[0]).st_ino == status.st_ino:
                return
        data = Path(os.fsdecode(full[0])).read_bytes()
        names = ["user.fffs.crc32", "user.fffs.record", "user.fffs.source", "user.fffs.verified"]
        found = os.getxattr(full[1], names[0]), sorted(os.listxattr(full[1])), status.st_blocks
        self._compare("attributes", (), [(b"%08x" % zlib.crc32(data), names, -(-len(data) // 512)), found])

    def _by_fd(self) -> None:
        if not self._fds:
            self._open()
            return
        rng, pair = self._rng, self._rng.choice(self._fds)
        start, size, seed = self._place(), self._size(), rng.randrange(1 << 30)
        sizes = tuple(self._size() for _ in range(rng.randrange(1, 5)))
        whence, private = rng.choice((0, 0, 1, 2, os.SEEK_DATA, os.SEEK_HOLE)), rng.random() < 0.5
        path = rng.choice((b"", b".", b"..", os.path.basename(self._path()), self._path()))
        flags = rng.choice((0, NOFOLLOW)) | rng.choice((0, FORCE_SYNC)) | AT_EMPTY_PATH
        calls: dict[str, Callable[[int], Any]] = {
            "read": lambda fd: os.read(fd, size),
            "read again": lambda fd: os.read(fd, size),
            "pread": lambda fd: os.pread(fd, size, start),
            "pread again": lambda fd: os.pread(fd, size, start),
            "preadv": lambda fd: _preadv(fd, sizes, start),
            "lseek": lambda fd: _sought(fd, start, whence),
            "mmap": lambda fd: _mapped(fd, max(start, 0), size, private),
            "sendfile": lambda fd: _sent(fd, rng.choice((None, max(start, 0))), size),
            "splice": lambda fd: _spliced(fd, size),
            "fstat": lambda fd: _status(os.fstat(fd)),
            "statx": lambda fd: _statx(fd, path, flags),
            "waiting": _waiting,
            "listing": lambda fd: _listing(fd, seed),
            "scandir": _scandir,
            "readlinkat": lambda fd: _short_readlink(fd, path, 5000),
            "faccessat": lambda fd: _is_reachable(fd, path, os.X_OK, 0),
            "from inside": lambda fd: _from_inside(fd, path),
            "forget": lambda fd: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED),
            "random": lambda fd: os.posix_fadvise(fd, 0, 0, rng.choice((0, 1, 2, 3))),
        }
        name = rng.choice(list(calls))
        state = rng.getstate()
        results = []
        for fd in pair:
            rng.setstate(state)
            results.append(_outcome(lambda fd=fd: calls[name](fd)))  # type: ignore[misc]
        self._compare(name, (pair, start, size, sizes, whence, path, flags), results)
        if rng.random() < 0.1:
            self._fds.remove(pair)
            for fd in pair:
                os.close(fd)

    # ------------------------------------------------------------ comparing

    def _compare(self, name: str, arguments: tuple[Any, ...], results: list[Any]) -> None:
        self.history.append(f"{name}{arguments!r:.300}")
        ours, theirs = (self._translated(result, other) for result, other in (results, results[::-1]))
        if ours != theirs:
            raise Difference(f"{name}: plain {_brief(results[0])}, mounted {_brief(results[1])}")

    def _translated(self, result: Any, other: Any) -> Any:
        """Return the result without identities, after checking that inodes of both sides correspond one to one."""
        if isinstance(result, dict) and isinstance(other, dict):
            self._pair(result.get("identity"), other.get("identity"))
            return {key: value for key, value in result.items() if key != "identity"}
        if isinstance(result, (list, tuple)) and isinstance(other, (list, tuple)) and len(result) == len(other):
            if len(result) == 2 and isinstance(result[0], bytes) and isinstance(result[1], int):
                return result[0]  # a name of a listing; ".." of a mount point is another inode
            return [self._translated(a, b) for a, b in zip(result, other, strict=True)]
        return result

    def _pair(self, identity: Any, other: Any) -> None:
        if identity == other:  # both calls followed a link to the same place
            return
        if self._twins.setdefault(identity, other) != other:
            raise Difference(f"{identity} is {other}, and was {self._twins[identity]}: hard links differ")


def _scandir(where: bytes | int) -> list[dict[str, Any]]:
    with os.scandir(where) as entries:  # type: ignore[type-var]
        return sorted(
            (
                {
                    "name": os.fsencode(entry.name),
                    "kind": (entry.is_dir(follow_symlinks=False), entry.is_symlink()),
                    **_status(entry.stat(follow_symlinks=False)),
                }
                for entry in entries
            ),
            key=lambda item: item["name"],
        )


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call or the name of its error."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except (ValueError, OverflowError) as error:  # raised by Python itself, the same for both
        return str(error)


def _brief(result: Any) -> str:
    return f"{result!r:.2000}" if not isinstance(result, bytes) else f"{len(result)} bytes {zlib.crc32(result):08x}"


# ---------------------------------------------------------------- many examples


def forget_names(mounted: bytes) -> None:
    """Drop the kernel's cached names; needs root."""
    libc.mount(None, mounted, None, ctypes.c_ulong(REMOUNT), None)


def compare(pairs: list[tuple[bytes, bytes]], numbers: range) -> str:
    """Run these examples. Returns the first difference, or an empty string."""
    paths = [[path[len(plain) + 1 :] for path in _walk(plain)] for plain, _ in pairs]
    for number in numbers:
        k = number % len(pairs)
        example = Example(number, *pairs[k], paths[k])
        if number % 20 == 0:
            forget_names(pairs[k][1])
        try:
            example.run()
        except Exception as error:
            done = "\n  ".join(example.history)
            return f"example {number} of {pairs[k][0]!r}: {type(error).__name__}: {error}\nafter\n  {done}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare mounts with the folders they show.")
    parser.add_argument("pairs", nargs="+", metavar="PLAIN:MOUNTED")
    parser.add_argument("--examples", metavar="FIRST:END:STEP", required=True)
    args = parser.parse_args()
    pairs = [(a, b) for a, b in (os.fsencode(pair).split(b":") for pair in args.pairs)]
    difference = compare(pairs, range(*map(int, args.examples.split(":"))))
    if difference:
        print(difference)
    return bool(difference)


if __name__ == "__main__":
    sys.exit(main())
