"""Archives for tests, made by tarfile and zipfile, or byte by byte where these refuse to write invalid ones."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

END = bytes(1024)


def tar_header(
    name: bytes, size: int = 0, kind: bytes = b"0", target: bytes = b"", mode: int = 0o644, mtime: int = 1_600_000_000
) -> bytes:
    """Return a header of ustar with any fields and the right checksum."""
    number = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    fields = (
        name.ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,
        number,
        b"%011o\0" % mtime,
        b" " * 8,
        kind,
        target.ljust(100, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def tar_file(name: bytes, data: bytes = b"content", **fields: bytes) -> bytes:
    """Return a regular member."""
    return tar_header(name, len(data), **fields) + padded(data)


def extended(**records: bytes) -> bytes:
    """Return an extended header of POSIX for the next member."""
    data = b""
    for key, value in records.items():
        record = b" %b=%b\n" % (key.replace("__", ".").encode(), value)
        size = len(record) + 1
        while len(b"%d" % size) + len(record) != size:
            size += 1
        data += b"%d%b" % (size, record)
    return tar_header(b"extended", len(data), b"x") + padded(data)


def zip_of(*members: tuple[str, bytes, int], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of (name, content, mode with type)."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", method) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10))
            info.create_system, info.external_attr = 3, mode << 16
            info.compress_type = method
            archive.writestr(info, content)
    return room.getvalue()


def tar_folder(folder: Path, target: Path, mode: str, form: int) -> None:
    """Write a tar of a folder, including its root, with symbolic and hard links."""
    with tarfile.open(target, mode, format=form) as archive:
        archive.add(folder, ".")


def zip_folder(folder: Path, target: Path) -> None:
    """Write a zip of a folder with modes, links and exact times."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            status, name = (
                path.lstat(),
                os.path.relpath(path, folder) + ("/" if path.is_dir() and not path.is_symlink() else ""),
            )
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, status.st_mode << 16
            info.extra = b"UT\x05\x00\x01" + int(status.st_mtime).to_bytes(4, "little", signed=True)
            if path.is_symlink():
                archive.writestr(info, os.readlink(path))
            else:
                archive.writestr(info, b"" if path.is_dir() else path.read_bytes())
