"""LMDB files become packs and records. liblmdb writes them; hostile ones are made of their bytes."""

from __future__ import annotations

import errno
import os
import random
import struct
import tempfile
from pathlib import Path

import lmdb
import pytest
from builders import MIB, stretched
from inside import source_files
from object_server import serving
from test_convert import left_in, records_of
from test_tables import pack_contents

import fffs
from fffs.errors import (
    FffsError,
    FormatError,
    MetadataError,
    SourceChangedError,
    UnsupportedError,
    UsageError,
    WriteError,
)

VALUES = {b"%s/%05d.jpg" % (place, k): stretched(k * 37 % 9000, k) for k in range(700) for place in (b"a", b"b")} | {
    b"large": stretched(3 * MIB + 1),
    b"empty": b"",
    b"odd-\xff": b"odd",
}
PAGE = 4096


def write_lmdb(
    path: Path, values: dict[bytes, bytes], *, subdir: bool = True, name: bytes | None = None, **flags: bool
) -> Path:
    with lmdb.open(os.fspath(path), map_size=64 * MIB, subdir=subdir, lock=False, max_dbs=2) as environment:
        database = environment.open_db(name, **flags)
        with environment.begin(write=True, db=database) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
    return path


def refusal(source: Path, kind: type[Exception] | tuple[type[Exception], ...] = FormatError) -> str:
    before = left_in(source.parent)
    with pytest.raises(kind) as caught:
        fffs.convert(source, source.parent / "y.ffr", from_="lmdb", warn=pytest.fail)
    assert str(source) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_in(source.parent) == before
    return str(caught.value)


@pytest.mark.parametrize("subdir", [True, False])
def test_keys_become_names(tmp_path: Path, subdir: bool) -> None:
    source = write_lmdb(tmp_path / "x", VALUES, subdir=subdir)
    done = fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=pytest.fail)
    assert done == ("lmdb", "ffrecord", len(VALUES), sum(map(len, VALUES.values())), 1)
    assert pack_contents(tmp_path / "y.ffr") == VALUES
    assert left_in(tmp_path) == ["x", "y.ffr"]


def test_values_become_records_in_the_order_of_their_keys(tmp_path: Path) -> None:
    source, lines = write_lmdb(tmp_path / "x", VALUES), list[str]()
    fffs.convert(source, tmp_path / "y.tfrecord", verify=True, warn=lines.append)
    assert records_of(tmp_path / "y.tfrecord") == [VALUES[key] for key in sorted(VALUES)]
    fffs.convert(source, tmp_path / "parts", to="ffrecord", parts=3, column="value", verify=True, warn=lines.append)
    assert records_of(tmp_path / "parts") == [VALUES[key] for key in sorted(VALUES)]
    assert lines == [f"{source}: the keys are not kept; records are in their order"] * 2


def test_keys_that_are_no_names_can_be_left_out(tmp_path: Path) -> None:
    source = write_lmdb(tmp_path / "x", {struct.pack(">I", k): b"%d" % k for k in range(300)})
    assert "--column" in refusal(source)
    fffs.convert(source, tmp_path / "y.ffr", column="value", warn=lambda _: None)
    assert records_of(tmp_path / "y.ffr") == [b"%d" % k for k in range(300)]


@pytest.mark.parametrize("key", [b"../x", b"/etc/x", b"a/../../x", b"a\0b", b"..", b"a//../b", b"k" * 300, b"."])
def test_keys_that_lead_elsewhere_are_refused(tmp_path: Path, key: bytes) -> None:
    refusal(write_lmdb(tmp_path / "x", {key: b"value", b"good": b""}))


def test_an_empty_one(tmp_path: Path) -> None:
    fffs.convert(write_lmdb(tmp_path / "x", {}), tmp_path / "y.ffr", verify=True)
    assert pack_contents(tmp_path / "y.ffr") == {}


def test_what_is_deleted_is_not_there(tmp_path: Path) -> None:
    source = write_lmdb(tmp_path / "x", VALUES)
    with lmdb.open(os.fspath(source), map_size=64 * MIB) as environment, environment.begin(write=True) as transaction:
        for key in list(VALUES)[::3]:
            transaction.delete(key)
    fffs.convert(source, tmp_path / "y.ffr", verify=True)
    assert pack_contents(tmp_path / "y.ffr") == {key: VALUES[key] for key in VALUES if key not in list(VALUES)[::3]}


def test_named_databases_and_keys_with_several_values_are_refused(tmp_path: Path) -> None:
    assert "b'inner' is a database of its own" in refusal(write_lmdb(tmp_path / "x", {b"k": b"v"}, name=b"inner"))
    assert "b'inner' is" in refusal(write_lmdb(tmp_path / "z", {b"k": b"v"}, name=b"inner", dupsort=True))


def test_a_column_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x: has no column 'key'; the values of an LMDB are the column 'value'"):
        fffs.convert(write_lmdb(tmp_path / "x", {b"k": b"v"}), tmp_path / "y.ffr", column="key")


# ---------------------------------------------------------------- hostile files


def pages_of(tmp_path: Path) -> bytearray:
    return bytearray((write_lmdb(tmp_path / "good", VALUES, subdir=False)).read_bytes())


def test_every_truncated_file_is_refused(tmp_path: Path) -> None:
    data = pages_of(tmp_path)
    for size in (0, 10, 100, PAGE, PAGE + 50, 2 * PAGE, 2 * PAGE + 7, len(data) // 2, len(data) - PAGE):
        (tmp_path / "x").write_bytes(data[:size])
        assert "x: " in refusal(tmp_path / "x")


def newest(data: bytes) -> int:
    """Return where the page begins whose header counts."""
    return max((0, PAGE), key=lambda at: struct.unpack_from("<Q", data, at + 16 + 128)[0])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (16 + 24 + 48 + 40, 2**63),  # the root is outside
        (16 + 24 + 48 + 40, 0),  # the root is a header
        (16 + 24 + 48 + 40, 3 << 40),
        (16 + 24 + 48, 0xFFFF << 48),  # depth
        (16 + 24, 12),  # bytes of a page
        (16 + 24, 1 << 31),
        (16, 0),  # magic
        (16, 2 << 32 | 0xBEEFC0DE),  # version
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, at: int, value: int) -> None:
    data = pages_of(tmp_path)
    for begin in (0, PAGE):
        struct.pack_into("<Q", data, begin + at, value)
    (tmp_path / "x").write_bytes(data)
    refusal(tmp_path / "x")


def root_of(data: bytes) -> int:
    return int(struct.unpack_from("<Q", data, newest(data) + 16 + 24 + 48 + 40)[0]) * PAGE


def test_pages_that_form_a_circle_end(tmp_path: Path) -> None:
    data = pages_of(tmp_path)
    root = root_of(data)
    place = struct.unpack_from("<H", data, root + 16)[0]
    low, high = (root // PAGE) & 0xFFFF, (root // PAGE) >> 16
    struct.pack_into("<HHH", data, root + place, low, high, 0)
    (tmp_path / "x").write_bytes(data)
    assert "form no tree" in refusal(tmp_path / "x")


def test_values_that_share_pages_fill_no_disk(tmp_path: Path) -> None:
    """Each of many small nodes claims the same large value."""
    values = {b"%03d" % k: stretched(20_000, k) for k in range(90)}
    data = bytearray(write_lmdb(tmp_path / "good", values, subdir=False).read_bytes())
    first = data.index(stretched(20_000, 0)) - 16
    size = 70 * 20_000
    for k in range(90):
        at = data.index(struct.pack("<HHHH", 20_000, 0, 1, 3) + b"%03d" % k)
        struct.pack_into("<HH", data, at, size & 0xFFFF, size >> 16)
        struct.pack_into("<Q", data, at + 11, first // PAGE)
    (tmp_path / "x").write_bytes(data)
    assert "share bytes" in refusal(tmp_path / "x")


def test_a_flipped_byte_never_ends_the_process(tmp_path: Path) -> None:
    values = {b"%03d" % k: stretched(k * 100, k) for k in range(60)}
    data = write_lmdb(tmp_path / "good", values, subdir=False).read_bytes()
    used = [at for at in range(len(data)) if data[at] and at % PAGE < 200]  # headers and places of nodes
    chosen, refused = random.Random(5), 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[chosen.choice(used)] ^= 1 << chosen.randrange(8)
        (tmp_path / "x").write_bytes(damaged)
        try:
            fffs.convert(tmp_path / "x", tmp_path / "y.ffr", force=True, from_="lmdb")
        except FffsError as error:
            refused += 1
            assert str(error).startswith(f"{tmp_path / 'x'}: ")
            assert "\n" not in str(error)
    assert refused


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    source = write_lmdb(tmp_path / "x", VALUES, subdir=False)

    def truncate(_done: int, _total: int) -> None:
        os.truncate(source, 3 * PAGE)

    with pytest.raises((MetadataError, SourceChangedError), match="x: "):
        fffs.convert(source, tmp_path / "y.ffr", progress=truncate)
    assert left_in(tmp_path) == ["x"]


@pytest.mark.parametrize("column", [None, "value"])
def test_a_transaction_that_changes_no_time_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str | None
) -> None:
    """Of a writer that maps the file, and syncs it later. Dirty pages, and file systems in memory, get no times."""
    source = tmp_path / "x"
    monkeypatch.setattr(source_files, "is_unchanged", lambda fd, was: True)
    with lmdb.open(os.fspath(source), map_size=64 * MIB, writemap=True, map_async=True, sync=False) as environment:

        def change(_done: int = 0, _total: int = 0) -> None:
            with environment.begin(write=True) as transaction:
                for key in range(1000):
                    transaction.put(b"%d" % key, b"%d" % transaction.id() * 100)

        change()
        fffs.convert(source, tmp_path / "y.ffr", column=column, verify=True, warn=lambda _: None)
        with pytest.raises(SourceChangedError, match=r"data\.mdb: changed while it was converted"):
            fffs.convert(source, tmp_path / "z.ffr", column=column, verify=True, warn=lambda _: None, progress=change)
    assert left_in(tmp_path) == ["x", "y.ffr"]


def test_an_lmdb_of_somebody_else_is_only_read(tmp_path: Path) -> None:
    source = write_lmdb(tmp_path / "x", VALUES)
    os.chmod(source / "data.mdb", 0o444)
    os.chmod(source, 0o555)
    before = (left_in(source), (source / "data.mdb").stat().st_mtime_ns)
    fffs.convert(source, tmp_path / "y.ffr")
    assert (left_in(source), (source / "data.mdb").stat().st_mtime_ns) == before
    os.chmod(source, 0o755)


def test_another_kind_of_machine_is_named(tmp_path: Path) -> None:
    data = pages_of(tmp_path)
    data[20:24] = struct.pack("<I", 999)
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UnsupportedError, match="another version or kind of machine"):
        fffs.convert(tmp_path / "x", tmp_path / "y.ffr", from_="lmdb")


def test_one_in_a_store_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages lie in no order, so that each would be a request."""
    data = write_lmdb(tmp_path / "x", VALUES, subdir=False).read_bytes()
    with serving(objects={"/x.lmdb": data}) as server:
        source = f"{server.url}/x.lmdb"
        fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=pytest.fail)
        assert pack_contents(tmp_path / "y.ffr") == VALUES
        fffs.convert(source, tmp_path / "y.bag", column="value", warn=lambda _: None)
        assert records_of(tmp_path / "y.bag") == [VALUES[key] for key in sorted(VALUES)]
        assert len(server.requests) < 40
        monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
        with pytest.raises(WriteError, match=r"a copy of http.*/x\.lmdb in the temporary folder: .*No space left"):
            fffs.convert(source, tmp_path / "z.ffr")
    assert left_in(tmp_path) == ["x", "y.bag", "y.ffr"]


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
