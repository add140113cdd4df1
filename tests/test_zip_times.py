"""The modification times of zip archives: which field counts, and that time zones do not."""

from __future__ import annotations

import io
import os
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fffs

DOS_DATE = (2024, 5, 6, 7, 8, 10)
EXTENDED = struct.pack("<HHBi", 0x5455, 5, 1, 1_600_000_000)
NTFS = struct.pack("<HHIHH3Q", 0x000A, 32, 0, 1, 24, *[(11_644_473_600 + 1_500_000_000) * 10**7 + 1234567] * 3)


def timed_zip(date: tuple[int, ...], *fields: bytes) -> bytes:
    """Return an archive of one member with a DOS date and extra fields."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        info = zipfile.ZipInfo("file", date)  # type: ignore[arg-type]
        info.extra = b"".join(fields)
        archive.writestr(info, b"content")
    return room.getvalue()


def time_in(pack: Path) -> int:
    with fffs.PackedFolder(pack) as opened:
        return opened.stat("file").st_mtime_ns


@pytest.fixture
def in_zone() -> Iterator[Callable[[str], None]]:
    """A function that sets the time zone of this process until the test ends."""
    before = os.environ.get("TZ")

    def change(zone: str | None) -> None:
        os.environ.pop("TZ", None)
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()

    yield change
    change(before)


def test_an_archive_becomes_the_same_pack_in_every_time_zone(tmp_path: Path, in_zone: Callable[[str], None]) -> None:
    (tmp_path / "x.zip").write_bytes(timed_zip(DOS_DATE))
    for zone in ("UTC", "JST-9", "XYZ+11"):
        in_zone(zone)
        assert time.timezone == {"U": 0, "J": -9, "X": 11}[zone[0]] * 3600
        fffs.convert(tmp_path / "x.zip", tmp_path / f"{zone[:3]}.ffr")
    assert time_in(tmp_path / "UTC.ffr") == 1714979290 * 10**9
    assert len({path.read_bytes() for path in tmp_path.glob("*.ffr")}) == 1


@pytest.mark.parametrize("date", [(1980, 0, 0, 0, 0, 0), (2107, 15, 31, 31, 63, 62)])
def test_a_date_that_is_none_is_1970(tmp_path: Path, date: tuple[int, ...]) -> None:
    data = bytearray(timed_zip(DOS_DATE))
    year, month, day, hour, minute, second = date
    at = data.index(b"PK\x01\x02")
    struct.pack_into(
        "<HH", data, at + 12, hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
    )
    (tmp_path / "x.zip").write_bytes(data)
    fffs.convert(tmp_path / "x.zip", tmp_path / "x.ffr")
    assert time_in(tmp_path / "x.ffr") == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([NTFS], 1_500_000_000_123_456_700),
        ([NTFS, EXTENDED], 1_600_000_000 * 10**9),
        ([struct.pack("<HHI", 0x000A, 4, 0)], 1714979290 * 10**9),
        ([struct.pack("<HHIHH3Q", 0x000A, 32, 0, 1, 24, 0, 0, 0)], 1714979290 * 10**9),
        ([struct.pack("<HHIHH3Q", 0x000A, 32, 0, 1, 24, *[2**64 - 1] * 3)], 1714979290 * 10**9),
        ([struct.pack("<HHIHH", 0x000A, 8, 0, 1, 24)], 1714979290 * 10**9),
        ([struct.pack("<HHIHH", 0x000A, 12, 0, 7, 0) + NTFS[8:12]], 1714979290 * 10**9),
    ],
    ids=["ntfs", "both", "empty", "zero", "largest", "cut", "other tag"],
)
def test_times_of_ntfs_are_kept_to_100_nanoseconds(tmp_path: Path, fields: list[bytes], expected: int) -> None:
    (tmp_path / "x.zip").write_bytes(timed_zip(DOS_DATE, *fields))
    fffs.convert(tmp_path / "x.zip", tmp_path / "x.ffr")
    assert time_in(tmp_path / "x.ffr") == expected
