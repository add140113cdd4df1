"""Tables of Parquet, Arrow and Hugging Face become packs and records, and these become tables."""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from builders import MIB, contents, small_disk, stretched
from inside import (
    EXPORTS,
    IMPORTS,
    MOST_OPEN,
    OpenFiles,
    ReopenedFile,
    converting_parser,
    optional_library,
    parquet_items,
    table_items,
)
from test_cli import run
from test_convert import flip, left_in, records_of, when_reread, write_ffr

import fffs
from fffs.errors import (
    FffsError,
    FormatError,
    MetadataError,
    RecordError,
    SourceChangedError,
    SourceNotFoundError,
    UnsupportedError,
    UsageError,
    WriteError,
)

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
ROWS = {
    "image": pa.array(
        [{"bytes": stretched(2 * MIB), "path": "/etc/passwd"}, {"bytes": b"two", "path": None}, None], IMAGE
    ),
    "label": pa.array([7, None, -1], pa.int64()),
    "caption": pa.array(["größer", "", "z"]).dictionary_encode(),
    "box": pa.array([[1.5, 2.0], [], None], pa.list_(pa.float32())),
}
SAMPLES = {
    b"000000.image": stretched(2 * MIB),
    b"000000.label": b"7",
    b"000000.caption": "größer".encode(),
    b"000000.box": b"[1.5, 2.0]",
    b"000001.image": b"two",
    b"000001.caption": b"",
    b"000001.box": b"[]",
    b"000002.label": b"-1",
    b"000002.caption": b"z",
}
FORMS = ["x.parquet", "x.arrow", "stream.arrow"]


STRUCT = pa.struct([("a", pa.duration("ns")), ("b", pa.int64())])


# With pandas, which fffs does not need, pyarrow returns other objects.
WITHOUT_PANDAS = """if True:
    import sys, types
    def find_spec(name, *_):
        if name == "pandas":
            raise ModuleNotFoundError("no pandas", name=name)
    sys.meta_path.insert(0, types.SimpleNamespace(find_spec=find_spec))
    import fffs
    fffs.convert(*sys.argv[1:], warn=len)
"""


def write_table(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        begin = pa.ipc.new_stream if path.name.startswith(("stream", "data")) else pa.ipc.new_file
        with path.open("wb") as file, begin(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


def pack_contents(path: Path) -> dict[bytes, bytes | None]:
    with fffs.PackedFolder(path) as pack:
        return {os.fsencode(name): pack.read_one(name).tobytes() for name in pack.list(recursive=True, list_dir=False)}


def quiet(_: str) -> None:
    pass


# ---------------------------------------------------------------- from tables


@pytest.mark.parametrize("name", FORMS)
def test_the_columns_of_a_row_become_files(tmp_path: Path, name: str) -> None:
    source, lines = write_table(tmp_path / name, pa.table(ROWS)), list[str]()
    done = fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=lines.append)
    assert done[:3] == (source.suffix[1:], "ffrecord", len(SAMPLES))
    assert pack_contents(tmp_path / "y.ffr") == SAMPLES
    assert lines[0].startswith(f"{source}: becomes text: label (int64), box (list<")
    assert lines[1:] == [f"{source}: the bytes in image are kept, not the paths"]


@pytest.mark.parametrize("name", FORMS)
def test_a_column_becomes_records(tmp_path: Path, name: str) -> None:
    source, lines = write_table(tmp_path / name, pa.table(ROWS)), list[str]()
    fffs.convert(source, tmp_path / "y.tfrecord", column="caption", verify=True, warn=lines.append)
    assert records_of(tmp_path / "y.tfrecord") == ["größer".encode(), b"", b"z"]
    assert lines == [f"{source}: the columns image, label, box are not kept"]
    fffs.convert(source, tmp_path / "parts", to="ffrecord", parts=2, column="caption", verify=True, warn=quiet)
    assert records_of(tmp_path / "parts") == ["größer".encode(), b"", b"z"]
    with pytest.raises(UnsupportedError, match=f"{name}: row 2 has nothing in the column 'image'"):
        fffs.convert(source, tmp_path / "z.ffr", column="image", warn=quiet)


def test_the_only_column_with_bytes_needs_no_name(tmp_path: Path) -> None:
    records = [b"", b"a", stretched(5 * MIB)]
    source = write_table(tmp_path / "x.parquet", pa.table({"data": records, "text": ["", "b", "c"], "n": [1, 2, 3]}))
    fffs.convert(source, tmp_path / "y.bag", warn=quiet)
    assert records_of(tmp_path / "y.bag") == records


def test_a_folder_of_files_is_one_table(tmp_path: Path) -> None:
    for k in range(3):
        write_table(tmp_path / f"t/part-{k}.parquet", pa.table({"x": [b"%d" % k, b""]}))
    (tmp_path / "t/_SUCCESS").touch()
    fffs.convert(tmp_path / "t", tmp_path / "y.ffr", verify=True)
    assert list(pack_contents(tmp_path / "y.ffr")) == [b"%06d.x" % k for k in range(6)]
    write_table(tmp_path / "t/part-3.parquet", pa.table({"y": [b""]}))
    with pytest.raises(FormatError, match=r"part-3\.parquet: has other columns"):
        fffs.convert(tmp_path / "t", tmp_path / "z.ffr")


@pytest.mark.parametrize(("form", "ending"), [("parquet", ".parquet"), ("arrow", ".arrow"), ("array_record", "")])
def test_a_missing_shard_is_an_error(tmp_path: Path, form: str, ending: str) -> None:
    (tmp_path / "t").mkdir()
    stem = "x.array_record" if form == "array_record" else "x"
    for k in (0, 2):
        (tmp_path / f"t/{stem}-{k:05}-of-00003{ending}").touch()
    ending = re.escape(ending)
    with pytest.raises(SourceNotFoundError, match=rf"t/{stem}-\?\?\?\?\?-of-00003{ending}: shard 1 missing"):
        fffs.convert(tmp_path / "t", tmp_path / "y.tfrecord", from_=form)


def test_keys_of_webdataset_are_names(tmp_path: Path) -> None:
    table = pa.table({"__key__": ["a/x", "a/y"], "__url__": ["u", "u"], "jpg": [b"1", b"2"], "__url__2": [3, None]})
    source, lines = write_table(tmp_path / "x.parquet", table), list[str]()
    fffs.convert(source, tmp_path / "y.ffr", warn=lines.append)
    assert pack_contents(tmp_path / "y.ffr") == {b"a/x.jpg": b"1", b"a/x.__url__2": b"3", b"a/y.jpg": b"2"}
    assert lines == [f"{source}: becomes text: __url__2 (int64)", f"{source}: the column __url__ is not kept"]


def test_a_dictionary_may_have_numbers_and_nulls(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    images = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0]), pa.array([{"bytes": b"i", "path": None}], IMAGE))
    table = pa.table({"n": pa.array([7, None, 7]).dictionary_encode(), "t": texts, "i": images})
    fffs.convert(write_table(tmp_path / "x.arrow", table), tmp_path / "y.ffr", verify=True, warn=quiet)
    first, *others = ({b"%06d.i" % k: b"i"} for k in range(3))
    assert pack_contents(tmp_path / "y.ffr") == first | others[0] | others[1] | {
        b"000000.n": b"7",
        b"000002.n": b"7",
        b"000000.t": b"a",
    }


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_bytes_and_texts_may_have_encodings_of_which_arrow_makes_no_dictionary(tmp_path: Path, encoding: str) -> None:
    rows = 2 * parquet_items.FEW_ROWS + 3
    images = [{"bytes": b"image%04d" % k, "path": f"{k}.jpg"} for k in range(rows)]
    columns = {
        "bytes": pa.array([b"bytes%04d" % k if k % 3 else None for k in range(rows)]),
        "text": pa.array([f"text{k:04}" for k in range(rows)]),
        "plain": pa.array([b"the same"] * rows),
        "image": pa.array(images, IMAGE),
    }
    encodings = dict.fromkeys(["bytes", "text", "image.bytes"], encoding)
    source = tmp_path / "x.parquet"
    options = {"use_dictionary": ["plain"], "column_encoding": encodings, "row_group_size": rows // 2}
    pq.write_table(pa.table(columns), source, **options)
    fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=quiet)
    wanted = {}
    for name, column in columns.items():
        cells = [cell and cell["bytes"] if name == "image" else cell for cell in column.to_pylist()]
        encoded = [cell.encode() if isinstance(cell, str) else cell for cell in cells]
        wanted |= {b"%06d.%s" % (k, name.encode()): cell for k, cell in enumerate(encoded) if cell is not None}
    assert pack_contents(tmp_path / "y.ffr") == wanted
    fffs.convert(source, tmp_path / "y.tfrecord", column="text")
    assert records_of(tmp_path / "y.tfrecord") == [f"text{k:04}".encode() for k in range(rows)]


def test_the_encoding_may_change_within_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a dictionary became too large for its writer. What is read twice is not read twice again."""
    read, rows, asked = parquet_items._batches, 2 * parquet_items.FEW_ROWS + 7, list[int]()

    def batches(opened: Any, group: int, columns: list[str], most: int) -> Iterator[Any]:
        asked.append(most)
        for k, batch in enumerate(read(opened, group, columns, most)):
            if most == 10 and k == 7:
                raise OSError(f"{parquet_items.NO_DICTIONARY} for DeltaByteArrayDecoder")
            yield batch

    monkeypatch.setattr(parquet_items, "BATCH_ROWS", 10)
    monkeypatch.setattr(parquet_items, "_batches", batches)
    (tmp_path / "x").mkdir()
    cells = [f"text{k:04}".encode() for k in range(2 * rows)]
    for name in ("1.parquet", "2.parquet"):
        pq.write_table(pa.table({"x": cells}), tmp_path / "x" / name, row_group_size=rows)
    fffs.convert(tmp_path / "x", tmp_path / "y.tfrecord", column="x")
    assert records_of(tmp_path / "y.tfrecord") == cells * 2
    assert asked == [10, *[parquet_items.FEW_ROWS] * 8]  # two passes over two groups of two files


def test_an_encrypted_column_beside_a_plain_footer(tmp_path: Path) -> None:
    """pyarrow ends the process if it is asked what the footer says of such a column."""
    encryption = importlib.import_module("pyarrow.parquet.encryption")

    class Client(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def __init__(self, _: Any) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _: str) -> bytes:
            return base64.b64encode(key)

    factory = encryption.CryptoFactory(Client)
    config = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=True)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    table = pa.table({"image": [b"one", b"two"], "secret": ["a", "b"]})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(MetadataError, match="decrypt"):
        fffs.convert(tmp_path / "x.parquet", tmp_path / "y.ffr", warn=quiet)
    fffs.convert(tmp_path / "x.parquet", tmp_path / "y.tfrecord", column="image")
    assert records_of(tmp_path / "y.tfrecord") == [b"one", b"two"]


@pytest.mark.parametrize("name", FORMS)
def test_times_keep_their_nanoseconds(tmp_path: Path, name: str) -> None:
    columns = {
        "t": (1, pa.time64("ns"), b'"00:00:00.000000001"'),
        "s": (1, pa.timestamp("ns"), b'"1970-01-01 00:00:00.000000001"'),
        "utc": (1, pa.timestamp("ns", "UTC"), b'"1970-01-01 00:00:00.000000001Z"'),
        "east": (1, pa.timestamp("ns", "+02:30"), b'"1970-01-01 02:30:00.000000001+0230"'),
        "west": (-1, pa.timestamp("ns", "-0330"), b'"1969-12-31 20:29:59.999999999-0330"'),
        "summer": (4 * 10**18, pa.timestamp("ns", "Europe/Berlin"), b'"2096-10-02 09:06:40.000000000+0200"'),
        "d": (-1, pa.duration("ns"), b'"-1 day, 23:59:59.999999999"'),
        "whole": (10**9, pa.duration("ns"), b'"0:00:01"'),
        "list": ([1, None], pa.list_(pa.timestamp("ns")), b'["1970-01-01 00:00:00.000000001", null]'),
        "struct": ({"a": 1500, "b": 2}, STRUCT, b'{"a": "0:00:00.000001500", "b": 2}'),
        "map": ([("k", 1)], pa.map_(pa.string(), pa.duration("ns")), b'[["k", "0:00:00.000000001"]]'),
    }
    table = pa.table({column: pa.array([value], kind) for column, (value, kind, _) in columns.items()})
    path = write_table(tmp_path / name, table)
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, path, tmp_path / "y.ffr"], check=True)
    fffs.convert(path, tmp_path / "z.ffr", warn=quiet)
    wanted = {f"000000.{column}".encode(): text for column, (_, _, text) in columns.items()}
    assert pack_contents(tmp_path / "y.ffr") == pack_contents(tmp_path / "z.ffr") == wanted


def write_int96(path: Path, values: list[Any], unit: str, **options: Any) -> Path:
    kinds = {"t": pa.timestamp(unit), "l": pa.list_(pa.timestamp(unit)), "s": pa.struct({"n": pa.timestamp(unit)})}
    columns = {"t": values, "l": [[value, None] for value in values], "s": [{"n": value} for value in values]}
    maps = pa.array([[("k", value)] for value in values], pa.map_(pa.string(), pa.timestamp(unit)))
    arrays = {name: pa.array(columns[name], kind) for name, kind in kinds.items()}
    other = pa.array([1] * len(values), pa.timestamp("us"))
    table = pa.table(
        {
            **arrays,
            "m": maps,
            "name": ["n"] * len(values),
            "other": other,
            "pair": pa.StructArray.from_arrays([other], ["us"]),
        }
    )
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=2, **options)
    return path


@pytest.mark.parametrize("stores_schema", [False, True])
def test_times_of_int96_do_not_overflow(tmp_path: Path, stores_schema: bool) -> None:
    """As tables of Spark have, for which 9999-12-31 is the end of what has none."""
    days = [datetime(2024, 5, 6, 7), None, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]
    path = write_int96(tmp_path / "x.parquet", days, "us", store_schema=stores_schema)
    fffs.convert(path, tmp_path / "y.ffr", verify=True, warn=quiet)
    found = pack_contents(tmp_path / "y.ffr")
    for row, day in enumerate(days):
        text = None if day is None else str(day)
        assert found.get(b"%06d.t" % row, b"null") == json.dumps(text).encode()
        assert json.loads(found[b"%06d.l" % row]) == [text, None]
        assert json.loads(found[b"%06d.s" % row]) == {"n": text}
        assert json.loads(found[b"%06d.m" % row]) == [["k", text]]
        assert found[b"%06d.other" % row] == b'"1970-01-01 00:00:00.000001"'


def test_times_of_int96_keep_their_nanoseconds(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    write_int96(folder / "1.parquet", [10**9], "ns")
    write_int96(folder / "2.parquet", [-1, None], "ns")
    fffs.convert(folder, tmp_path / "y.ffr", warn=quiet)
    found = pack_contents(tmp_path / "y.ffr")
    assert found[b"000000.t"] == b'"1970-01-01 00:00:01.000000000"'
    assert found[b"000001.l"] == b'["1969-12-31 23:59:59.999999999", null]'

    write_int96(folder / "2.parquet", [datetime(9999, 12, 31)], "us")
    write_int96(folder / "1.parquet", [1], "ns")
    with pytest.raises(UnsupportedError, match=r"has INT96 times with nanoseconds, or .*, and others beyond"):
        fffs.convert(folder, tmp_path / "z.ffr", warn=quiet)
    fffs.convert(folder, tmp_path / "z.tfrecord", column="name", warn=quiet)
    assert records_of(tmp_path / "z.tfrecord") == [b"n"] * 2


def test_files_with_int96_and_with_nanoseconds_are_one_table(tmp_path: Path) -> None:
    """As where one program appends to what another one wrote."""
    folder = tmp_path / "x"
    folder.mkdir()
    table = pa.table({"t": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(table, folder / "1.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(table, folder / "2.parquet")
    fffs.convert(folder, tmp_path / "y.ffr", warn=quiet)
    assert set(pack_contents(tmp_path / "y.ffr").values()) == {b'"1970-01-01 00:00:00.000000001"'}


DAY, EPOCH = 86_400 * 10**6, 2_440_588  # a day in microseconds, and the number of that which begins in 1970


def write_old_int96(path: Path, values: list[int], unit: str) -> Path:
    """Write times as older releases of pyarrow do: before 1970, a time of day is the next day less some nanoseconds."""
    table = pa.table({"t": pa.array(values, pa.timestamp(unit))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False)
    data, factor = path.read_bytes(), 1 if unit == "ns" else 1000
    for day, rest in (divmod(value * factor, DAY * 1000) for value in values):
        if day < 0 < rest:
            new, old = struct.pack("<Qi", rest, EPOCH + day), struct.pack("<qi", rest - DAY * 1000, EPOCH + day + 1)
            data = data.replace(new, old)
            assert data.count(old) == 1
    path.write_bytes(data)
    return path


def test_times_of_int96_before_1970_that_older_releases_of_pyarrow_wrote(tmp_path: Path) -> None:
    for unit, values, last in (("us", [-1500, 10**9], "8500000"), ("ns", [-1_499_001, 10**9], "8500999")):
        path = write_old_int96(tmp_path / "x.parquet", values, unit)
        fffs.convert(path, tmp_path / "y.ffr", warn=quiet, force=True)
        assert pack_contents(tmp_path / "y.ffr")[b"000000.t"] == b'"1969-12-31 23:59:59.99%s"' % last.encode()


@pytest.mark.parametrize("year", [1, 1500, 2299, 2500, 2900, 9999])
def test_what_no_unit_of_int96_can_hold_is_refused(tmp_path: Path, year: int) -> None:
    far = (datetime(year, 1, 1, 12) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    path = write_old_int96(tmp_path / "x.parquet", [-1500, far], "us")
    with pytest.raises(UnsupportedError, match="or before 1970 in the form of an older pyarrow, and others beyond"):
        fffs.convert(path, tmp_path / "y.ffr", warn=quiet)


SHIFT = 2**64 % 1000  # nanoseconds by which microseconds and nanoseconds of the old form differ


@pytest.mark.parametrize("writer", [b"parquet-cpp", b"parquet-go "])
@pytest.mark.parametrize("value", [SHIFT, -SHIFT, SHIFT - 1000, 0, -1, -(10**9), 1_700_000_000_123_456_000 + SHIFT])
def test_a_single_time_of_int96(tmp_path: Path, value: int, writer: bytes) -> None:
    """No other time, and no name of a writer, is needed to know what it is."""
    path = write_old_int96(tmp_path / "x.parquet", [value], "ns")
    path.write_bytes(path.read_bytes().replace(b"parquet-cpp", writer))
    fffs.convert(path, tmp_path / "y.ffr", verify=True, warn=quiet)
    second, rest = divmod(value, 10**9)
    text = f"{datetime(1970, 1, 1) + timedelta(seconds=second)}.{rest:09}"
    assert pack_contents(tmp_path / "y.ffr") == {b"000000.t": json.dumps(text).encode()}


def test_far_times_of_int96(tmp_path: Path) -> None:
    """Where microseconds of the old form would be, 584 years ahead, are other times as well."""
    path, day = tmp_path / "x.parquet", datetime(2300, 1, 1)
    far = (day - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    write_old_int96(path, [far, far + 1], "us")
    fffs.convert(path, tmp_path / "y.ffr", verify=True, warn=quiet)
    assert pack_contents(tmp_path / "y.ffr")[b"000001.t"] == b'"2300-01-01 00:00:00.000001"'

    good = struct.pack("<Qi", 0, EPOCH + far // DAY)
    for nanoseconds, number in ((SHIFT, EPOCH + far // DAY), (0, -1), (2**63 - 1, 2**31 - 1)):
        path.write_bytes(path.read_bytes().replace(good, good := struct.pack("<Qi", nanoseconds, number)))
        with pytest.raises(UnsupportedError, match="has INT96 times with nanoseconds"):
            fffs.convert(path, tmp_path / "z.ffr", warn=quiet)


def test_int96_in_a_file_that_names_an_encryption(tmp_path: Path) -> None:
    """As where another column is encrypted: pyarrow crashes where it shall write such a footer."""
    path = write_int96(tmp_path / "x.parquet", [datetime(9999, 12, 31)], "us")
    data = path.read_bytes()
    algorithm = bytes([12, 8 << 1, 0x1C, 0, 0])  # a struct with the number 8: AES-GCM with its defaults
    size = int.from_bytes(data[-8:-4], "little") + len(algorithm)
    path.write_bytes(data[:-9] + algorithm + b"\0" + struct.pack("<I", size) + b"PAR1")
    fffs.convert(path, tmp_path / "y.ffr", verify=True, warn=quiet)
    assert pack_contents(tmp_path / "y.ffr")[b"000000.t"] == b'"9999-12-31 00:00:00"'


def test_int96_in_a_wide_table_of_all_types(tmp_path: Path) -> None:
    """With bytes of the same length, names with dots, nested columns and numbers beside them."""
    far = datetime(9999, 12, 31)
    kinds = [pa.timestamp("us"), pa.list_(pa.struct({"t": pa.timestamp("us"), "n": pa.int8()})), pa.float64()]
    values: list[Any] = [far, [{"t": far, "n": 1}, None], 0.5]
    columns = {f"c.{k}": pa.array([values[k % 3], None], kinds[k % 3]) for k in range(60)}
    columns["fixed"] = pa.array([bytes(range(12)), None], pa.binary(12))
    columns["uuid"] = pa.array([bytes(range(16)), None], pa.uuid())
    path = tmp_path / "x.parquet"
    metadata = {"k" * 200: "v" * 300}
    pq.write_table(pa.table(columns, metadata=metadata), path, use_deprecated_int96_timestamps=True, row_group_size=1)
    fffs.convert(path, tmp_path / "y.ffr", verify=True, warn=quiet)
    found = pack_contents(tmp_path / "y.ffr")
    assert found[b"000000.c.57"] == b'"9999-12-31 00:00:00"'
    assert found[b"000000.c.58"] == b'[{"t": "9999-12-31 00:00:00", "n": 1}, null]'
    assert found[b"000000.fixed"] == bytes(range(12))


@pytest.mark.parametrize("name", FORMS)
def test_json_and_other_types_that_are_stored_as_bytes_stay_as_they_are(tmp_path: Path, name: str) -> None:
    columns = {"j": pa.array(['{"a": 0}', None], pa.json_()), "u": pa.array([bytes(range(16)), None], pa.uuid())}
    path = write_table(tmp_path / name, pa.table(columns))
    fffs.convert(path, tmp_path / "y.ffr", verify=True, warn=quiet)
    assert pack_contents(tmp_path / "y.ffr") == {b"000000.j": b'{"a": 0}', b"000000.u": bytes(range(16))}
    fffs.convert(write_table(path, pa.table(columns).slice(0, 1)), tmp_path / "z.tfrecord", column="j", warn=quiet)
    with fffs.open(tmp_path / "z.tfrecord") as reader:
        assert bytes(reader.read_one(0)) == b'{"a": 0}'


def test_a_uuid_or_json_is_not_taken_for_the_column_of_records(tmp_path: Path) -> None:
    identity = pa.array([bytes(range(16))], pa.uuid())
    about = pa.array(["{}"], pa.json_())
    for columns, wanted in (
        ({"id": identity, "x": pa.array(["text"]), "about": about}, b"text"),
        ({"id": identity, "x": pa.array([b"image"]), "about": about}, b"image"),
        ({"id": identity, "about": about}, bytes(range(16))),
        ({"about": about, "n": pa.array([1])}, b"{}"),
    ):
        path = write_table(tmp_path / "x.parquet", pa.table(columns))
        fffs.convert(path, tmp_path / "y.tfrecord", force=True, warn=quiet)
        assert records_of(tmp_path / "y.tfrecord") == [wanted]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.timestamp("ns")], ids=str)
def test_fields_of_one_name_are_not_lost(tmp_path: Path, kind: Any) -> None:
    values = pa.array([2**63 - 1], pa.int64()).cast(kind)
    twice = pa.StructArray.from_arrays([values, values], fields=[pa.field("a", kind), pa.field("a", kind)])
    path = write_table(tmp_path / "x.arrow", pa.table({"s": twice}))
    with pytest.raises(MetadataError, match=r"duplicate field names|several fields of one name"):
        fffs.convert(path, tmp_path / "y.ffr", warn=quiet)


def test_a_time_of_an_unknown_zone_is_an_error(tmp_path: Path) -> None:
    for unit in ("ns", "us"):
        path = write_table(tmp_path / "x.arrow", pa.table({"t": pa.array([1], pa.timestamp(unit, "Mars/Base"))}))
        with pytest.raises(MetadataError, match="Mars/Base"):
            fffs.convert(path, tmp_path / "y.ffr", warn=quiet)


def test_bytes_of_nested_extension_types_are_refused(tmp_path: Path) -> None:
    cells = pa.array([[b"a"]], pa.list_(pa.binary()))
    opaque = pa.ListArray.from_arrays(
        cells.offsets, pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "kind", "vendor"), cells.values)
    )
    path = write_table(tmp_path / "x.arrow", pa.table({"o": opaque}))
    with pytest.raises(UnsupportedError, match="has bytes in"):
        fffs.convert(path, tmp_path / "y.ffr", warn=quiet)


@pytest.mark.parametrize("name", FORMS)
def test_times_beyond_the_years_of_python(tmp_path: Path, name: str) -> None:
    """Databases use them as infinity."""
    times = pa.array([2**63 - 1, 0, 316516204800000000], pa.int64()).cast(pa.timestamp("us"))
    infinity = "<value out of range: 9223372036854775807>"  # Arrow's words
    columns = {
        "s": (times[:1], f'"{infinity}"'),
        "d": (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), '"<value out of range: 2147483647>"'),
        "list": (
            pa.ListArray.from_arrays([0, 3], times),
            f'["{infinity}", "1970-01-01 00:00:00", "12000-01-01 00:00:00.000000"]',
        ),
        "z": (times[:1].cast(pa.timestamp("us", "Europe/Berlin")), f'"{infinity}"'),
        "zone": (times[2:].cast(pa.timestamp("us", "UTC")), '"12000-01-01 00:00:00.000000+00:00"'),
    }
    table = pa.table({column: cells for column, (cells, _) in columns.items()})
    fffs.convert(write_table(tmp_path / name, table), tmp_path / "y.ffr", verify=True, warn=quiet)
    assert pack_contents(tmp_path / "y.ffr") == {
        f"000000.{c}".encode(): text.encode() for c, (_, text) in columns.items()
    }


@pytest.mark.parametrize(
    "names",
    [
        ["state.json"],
        ["state.json", "x.jpg"],
        ["state.json", "x.arrow", "labels.json"],
        ["index.json", "x"],
        ["index.json", "x.mds", "y.json"],
        ["a.parquet", "b.txt"],
        ["a.parquet", "_notes.txt"],
        ["_a.parquet"],
        ["data.mdb", "x"],
    ],
)
def test_other_folders_are_packed(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "f").mkdir()
    for name in names:
        (tmp_path / "f" / name).touch()
    assert fffs.convert(tmp_path / "f", tmp_path / "y.ffr").source == "folder"
    assert sorted(pack_contents(tmp_path / "y.ffr")) == [name.encode() for name in sorted(names)]


# ---------------------------------------------------------------- to tables


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_pack_becomes_a_table_and_a_pack_again(tmp_path: Path, ending: str) -> None:
    (tmp_path / "f/sub").mkdir(parents=True)
    for k in range(5):
        (tmp_path / f"f/sub/ü{k}.bin").write_bytes(stretched(MIB * k + k, k))
    os.link(tmp_path / "f/sub/ü1.bin", tmp_path / "f/again")
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    lines: list[str] = []
    fffs.convert(tmp_path / "f.ffr", tmp_path / f"x.{ending}", verify=True, warn=lines.append)
    assert len(lines) == 1
    assert "symbolic links and folders without files are not kept" in lines[0]
    source = tmp_path / f"x.{ending}"
    table = pq.read_table(source) if ending == "parquet" else pa.ipc.open_file(source).read_all()
    expected = {name: data for name, data in contents(tmp_path / "f").items() if data is not None}
    paths = [path.encode() for path in table["path"].to_pylist()]
    assert dict(zip(paths, table["bytes"].to_pylist(), strict=True)) == expected
    fffs.convert(tmp_path / f"x.{ending}", tmp_path / "back.ffr", verify=True)
    assert pack_contents(tmp_path / "back.ffr") == expected


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_records_become_a_column_in_parts(tmp_path: Path, ending: str) -> None:
    records = [stretched(k * 1000, k) for k in range(20)]
    source = write_ffr(tmp_path / "x.ffr", records)
    done = fffs.convert(source, tmp_path / "t", to=ending, part_size=30_000, key="jpg", verify=True)
    assert left_in(tmp_path / "t") == [f"t-{k:05}-of-{done.parts:05}.{ending}" for k in range(done.parts)]
    assert done.parts > 3
    fffs.convert(tmp_path / "t", tmp_path / "back.ffr", column="jpg", verify=True)
    assert (tmp_path / "back.ffr").read_bytes() == source.read_bytes()
    fffs.convert(write_ffr(tmp_path / "none.ffr", []), tmp_path / f"none.{ending}", verify=True)
    fffs.convert(tmp_path / f"none.{ending}", tmp_path / "none.bag")
    assert records_of(tmp_path / "none.bag") == []


def test_other_libraries_read_the_table_in_groups_of_rows(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [bytes([k]) * (20 * MIB) for k in range(4)])
    fffs.convert(source, tmp_path / "x.parquet")
    assert [pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(k).num_rows for k in range(4)] == [1] * 4


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_verify_finds_a_flipped_byte_before_the_table_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    source = write_ffr(tmp_path / "source.ffr", [stretched(10_000, k) for k in range(6)])
    when_reread(monkeypatch, lambda file: flip(file.fd, 25_000))
    with pytest.raises((RecordError, FormatError), match=rf"^{tmp_path}/x\.{ending}: "):
        fffs.convert(source, tmp_path / f"x.{ending}", verify=True)
    assert left_in(tmp_path) == ["source.ffr"]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_full_disk_leaves_no_table(tmp_path: Path, ending: str) -> None:
    source = write_ffr(tmp_path / "x.ffr", [random.Random(k).randbytes(MIB) for k in range(6)])
    with small_disk(tmp_path / "small", 4 * MIB) as disk:
        for name, options in ((f"x.{ending}", {}), ("parts", {"to": ending, "parts": 2})):
            with pytest.raises(WriteError, match=f"^{disk}/{name}.*No space left on device"):
                fffs.convert(source, disk / name, **options)
            assert left_in(disk) == []


@pytest.mark.parametrize("name", ["y.tar", "y.parquet", "y.arrow", "y.array_record"])
def test_an_interrupted_export_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    source = write_ffr(tmp_path / "x.ffr", [stretched(MIB, k) for k in range(12)])
    (tmp_path / name).write_bytes(b"old")

    def interrupt(done: int, _total: int) -> None:
        if done > 5 * MIB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fffs.convert(source, tmp_path / name, force=True, progress=interrupt)
    assert (tmp_path / name).read_bytes() == b"old"
    assert left_in(tmp_path) == ["x.ffr", name]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_table_is_never_replaced_by_what_it_becomes(tmp_path: Path, name: str) -> None:
    source = write_table(tmp_path / name, pa.table({"x": [b"1"]}))
    before = source.read_bytes()
    os.link(source, tmp_path / "link.ffr")
    for target in (source, tmp_path / "link.ffr"):
        with pytest.raises(UsageError, match="is the source itself"):
            fffs.convert(source, target, column="x", force=True)
    assert source.read_bytes() == before


def test_a_source_that_changes_meanwhile_gives_no_result(tmp_path: Path) -> None:
    source = write_table(tmp_path / "x.parquet", pa.table({"path": ["a", "b"], "bytes": [b"1", b"2"]}))

    def change(_done: int, _total: int) -> None:
        os.utime(source, ns=(0, 1))

    with pytest.raises(SourceChangedError, match=r"x\.parquet: changed while it was converted"):
        fffs.convert(source, tmp_path / "y.ffr", progress=change)
    assert left_in(tmp_path) == ["x.parquet"]


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / os.fsdecode(b"\xff")).touch()
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    with pytest.raises(UnsupportedError, match=r"f\.ffr: b'\\xff' is not UTF-8"):
        fffs.convert(tmp_path / "f.ffr", tmp_path / "x.parquet")
    assert left_in(tmp_path) == ["f", "f.ffr"]


# ---------------------------------------------------------------- Hugging Face


def save(folder: Path, state: dict[str, Any] | None = None) -> Path:
    """Write what ``Dataset.save_to_disk`` writes."""
    for k in range(2):
        write_table(folder / f"data-0000{k}-of-00002.arrow", pa.table({"image": [b"%d" % k], "label": [k]}))
    files = [{"filename": f"data-0000{k}-of-00002.arrow"} for k in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files} | (state or {})))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_saved_data_set_of_hugging_face(tmp_path: Path) -> None:
    source = save(tmp_path / "saved")
    assert fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=quiet).source == "arrow"
    assert pack_contents(tmp_path / "y.ffr")[b"000001.image"] == b"1"
    fffs.convert(source, tmp_path / "y.tfrecord", column="image", warn=quiet)
    assert records_of(tmp_path / "y.tfrecord") == [b"0", b"1"]
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict/dataset_dict.json").write_text("{}")
    source.rename(tmp_path / "dict/train")
    with pytest.raises(UsageError, match=r"dict: has several splits \(train\)"):
        fffs.convert(tmp_path / "dict", tmp_path / "z.ffr")


def test_nothing_is_written_into_the_folder_of_tables_that_is_read(tmp_path: Path) -> None:
    source = save(tmp_path / "saved")
    before = {path: path.read_bytes() for path in source.iterdir()}
    for name in ("dataset_info.json", "data-00002-of-00003.arrow", "new", "below/new"):
        with pytest.raises(UsageError, match=r"is in the source, .*saved; name a file or folder outside of it"):
            fffs.convert(source, source / name, to="tfrecord", column="image", force=True, warn=quiet)
    for number in range(2):
        write_table(tmp_path / f"tables/{number}.parquet", pa.table({"x": [b"1"]}))
    with pytest.raises(UsageError, match=r"is in the source, .*tables"):
        fffs.convert(tmp_path / "tables", tmp_path / "tables/all.parquet", to="parquet", column="x", warn=quiet)
    assert {path: path.read_bytes() for path in source.iterdir()} == before
    assert left_in(tmp_path / "tables") == ["0.parquet", "1.parquet"]


def test_paths_of_embedded_files_are_said_to_be_lost(tmp_path: Path) -> None:
    cells = pa.array([{"bytes": b"0", "path": "cat/0.jpg"}])
    source, lines = write_table(tmp_path / "x.parquet", pa.table({"image": cells, "text": ["a"]})), list[str]()
    fffs.convert(source, tmp_path / "y.ffr", warn=lines.append)
    fffs.convert(source, tmp_path / "y.tfrecord", column="image", warn=lines.append)
    fffs.convert(source, tmp_path / "z.tfrecord", column="text", warn=quiet)
    line = f"{source}: the bytes in image are kept, not the paths"
    assert lines == [line, f"{source}: the columns text are not kept", line]


def test_metadata_of_columns_is_said_to_be_lost(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"]}).replace_schema_metadata({"huggingface": '{"names": ["cat"]}', b"\xff": "x"})
    for name in ("x.parquet", "x.arrow"):
        source, lines = write_table(tmp_path / name, table), list[str]()
        fffs.convert(source, tmp_path / f"{name}.ffr", warn=lines.append)
        assert lines == [rf"{source}: the metadata of its columns is not kept (huggingface, \xff)"]


def test_a_saved_data_set_without_rows_has_no_files(tmp_path: Path) -> None:
    source = save(tmp_path / "saved", {"_data_files": []})
    for file in source.glob("*.arrow"):
        file.unlink()
    assert fffs.convert(source, tmp_path / "y.ffr", verify=True).source == "arrow"
    assert pack_contents(tmp_path / "y.ffr") == {}


@pytest.mark.parametrize(
    "state",
    [
        {"_data_files": [{"filename": "../outside.arrow"}]},
        {"_data_files": [{"filename": "/etc/passwd"}]},
        {"_data_files": [{"filename": ".."}]},
        {"_data_files": [{"filename": "a\0b"}]},
        {"_data_files": [{"name": "x"}]},
        {"_data_files": [{"filename": "data-00000-of-00001.arrow"}] * 2},
        {"_data_files": 7},
        {"_indices_data_files": [{"filename": "x"}]},
    ],
)
def test_a_state_that_leads_elsewhere_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    write_table(tmp_path / "outside.arrow", pa.table({"x": [b"secret"]}))
    source = save(tmp_path / "saved", state)
    with pytest.raises((MetadataError, UsageError), match="saved") as caught:
        fffs.convert(source, tmp_path / "y.ffr")
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path) == ["outside.arrow", "saved"]


# ---------------------------------------------------------------- hostile and odd input


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"path": ["../x"], "bytes": [b""]}, {}, r"'\.\./x'"),
        ({"path": ["/x"], "bytes": [b""]}, {}, "names cannot be kept as they are: the leading '/'"),
        ({"path": ["a\0b"], "bytes": [b""]}, {}, "NUL"),
        ({"path": ["a", "a"], "bytes": [b"1", b"2"]}, {}, "names cannot be kept as they are: 'a'"),
        ({"path": ["a", "a/b"], "bytes": [b"1", b"2"]}, {}, "a"),
        ({"path": ["x" * 300], "bytes": [b""]}, {}, "x"),
        ({"path": pa.array([None], pa.string()), "bytes": [b""]}, {}, "row 0 has nothing in the column 'path'"),
        ({"a/../..": [b""]}, {}, "a/"),
        ({"x": [[b"nested"]]}, {}, "has bytes in list"),
        ({"x": [1], "y": [b""]}, {"column": "x"}, "is int64, and records are bytes"),
        ({"x": [1], "y": [b""]}, {"column": "z"}, "has no column 'z'; it has x, y"),
        ({"x": [b""], "y": [b""]}, {"to": "tfrecord"}, "choose the column that becomes records with --column: x, y"),
        ({"x": [1]}, {"to": "tfrecord"}, "none has bytes"),
        (
            {"x": pa.array([{"bytes": None, "path": "/etc/passwd"}], IMAGE)},
            {},
            r"x\.parquet: row 0 refers to a file elsewhere \('/etc/passwd'\)",
        ),
    ],
)
def test_what_cannot_be_kept_is_an_error_in_one_line(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    source = write_table(tmp_path / "x.parquet", pa.table(table))
    with pytest.raises((UsageError, FormatError), match=message) as caught:
        fffs.convert(source, tmp_path / "y.ffr", warn=quiet, **options)
    assert "\n" not in str(caught.value)
    assert str(source) in str(caught.value)
    assert left_in(tmp_path) == ["x.parquet"]


@pytest.mark.parametrize("name", FORMS)
def test_damaged_tables_are_errors_in_one_line(tmp_path: Path, name: str) -> None:
    table = pa.table({"path": [f"{k}" for k in range(50)], "bytes": [b"%d" % k * 20 for k in range(50)]})
    whole = write_table(tmp_path / "s" / name, table).read_bytes()
    source = tmp_path / name
    refused = 0
    damaged = [whole[:size] for size in range(8, len(whole), len(whole) // 15)]
    for at in range(8, len(whole), len(whole) // 40):
        damaged.append(whole[:at] + bytes([whole[at] ^ 0xFF, *b"\xff" * 7]) + whole[at + 8 :])
    for data in damaged:
        source.write_bytes(data)
        try:
            fffs.convert(source, tmp_path / "y.ffr", force=True, warn=quiet, from_=source.suffix[1:])
        except FffsError as error:
            refused += 1
            assert "\n" not in str(error)
            assert str(source) in str(error)
    assert refused > 12
    assert set(left_in(tmp_path)) <= {"s", name, "y.ffr"}


@pytest.mark.parametrize("name", FORMS)
def test_a_column_whose_name_is_no_text_is_an_error(tmp_path: Path, name: str) -> None:
    source = write_table(tmp_path / name, pa.table({"column": [b"x"]}))
    source.write_bytes(source.read_bytes().replace(b"column", b"\xff" * 6))
    with pytest.raises(FormatError, match=name):
        fffs.convert(source, tmp_path / "y.ffr")


def test_a_length_that_nothing_follows_takes_no_memory(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pa.table({"x": [b"abc"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    begin = data.index(b"\xff\xff\xff\xff", 8)
    (tmp_path / "x.arrow").write_bytes(data[: begin + 4] + (2**31 - 8).to_bytes(4, "little") + data[begin + 8 :])
    with pytest.raises(FormatError, match=r"x\.arrow: damaged"):
        fffs.convert(tmp_path / "x.arrow", tmp_path / "y.ffr")


def test_a_batch_that_does_not_fit_into_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_table(tmp_path / "stream.arrow", pa.table({"x": [bytes(MIB)]}))
    monkeypatch.setattr(table_items, "LEAST", MIB // 2)
    monkeypatch.setattr(table_items, "available_memory", lambda: MIB)
    with pytest.raises(UnsupportedError, match=r"stream\.arrow: needs 104\d+ bytes at once"):
        fffs.convert(source, tmp_path / "y.ffr")
    assert left_in(tmp_path) == ["stream.arrow"]


def test_one_process_converts_a_table(tmp_path: Path) -> None:
    source = write_table(tmp_path / "x.parquet", pa.table({"x": [b"1", b"2"]}))
    for options in ({"executor": "processes:2"}, {"restart": True}):
        with pytest.raises(UsageError, match=r"x\.parquet: parquet is converted by one process only"):
            fffs.convert(source, tmp_path / "y", to="ffrecord", parts=2, **options)
    with pytest.raises(UsageError, match=r"x\.parquet: parquet is converted by one process only"):
        fffs.plan_convert(source, tmp_path / "y", 2, to="ffrecord")


@pytest.mark.parametrize("embedded", [False, True])
def test_a_value_of_many_rows_is_in_memory_once(tmp_path: Path, embedded: bool) -> None:
    column = pa.array([stretched(20_000)] * 4000, pa.binary())
    if embedded:
        column = pa.StructArray.from_arrays([column, pa.array([None] * 4000, pa.string())], ["bytes", "path"])
    source = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": column}), source)
    assert source.stat().st_size < MIB
    with IMPORTS[0].open([str(source)], str(source)) as items:
        before = pa.default_memory_pool()
        pool = pa.proxy_memory_pool(before)
        pa.set_memory_pool(pool)
        try:
            assert [size for _, size in items.sizes()] == [20_000] * 4000
        finally:
            pa.set_memory_pool(before)
    assert pool.max_memory() < 20 * MIB


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_table(tmp_path / "x.parquet", pa.table({"x": [b""]}))
    optional_library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"x\.parquet: reading it needs pyarrow, .*pip install 'fffs\[arrow\]'"):
        fffs.convert(source, tmp_path / "y.ffr")
    optional_library.cache_clear()


def test_the_command_line_knows_all_formats() -> None:
    assert tuple(row.name for row in IMPORTS) == converting_parser.IMPORTS
    assert tuple(row.name for row in EXPORTS) == converting_parser.EXPORTS


def test_the_command_says_what_is_not_kept(tmp_path: Path) -> None:
    source = write_table(tmp_path / "x.parquet", pa.table({"x": [b"one", b"two"], "n": [1, 2]}))
    done = run("convert", source, tmp_path / "y.ffr", "--column", "x", "--verify")
    assert done.code == 0
    assert b"y.ffr: 2 rows, 6 B in" in done.out
    assert f"{source}: the columns n are not kept" in done.err
    assert records_of(tmp_path / "y.ffr") == [b"one", b"two"]
    done = run("convert", source, tmp_path / "files.ffr")
    assert (done.code, b"files.ffr: 4 files, " in done.out) == (0, True)
    done = run("convert", source, tmp_path / "z.ffr", "--column", "n")
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.fixture
def many_tables(tmp_path: Path) -> Iterator[Path]:
    """A folder of more files than may be open, with one row each."""
    count = MOST_OPEN + 40
    (tmp_path / "many").mkdir()
    for k in range(count):
        write_table(tmp_path / "many" / f"part-{99_990 + k:05}-1f.parquet", pa.table({"x": [b"%d" % k]}))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, limits[1]))
    yield tmp_path / "many"
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_tables_of_more_files_than_may_be_open_are_read_in_the_order_of_their_numbers(
    many_tables: Path, tmp_path: Path
) -> None:
    fffs.convert(many_tables, tmp_path / "x.tfrecord", verify=True)
    count = len(os.listdir(many_tables))
    with fffs.open(tmp_path / "x.tfrecord") as records:
        assert [bytes(record) for record in records] == [b"%d" % k for k in range(count)]
    fffs.convert(many_tables, tmp_path / "x.ffr", verify=True)
    with fffs.PackedFolder(tmp_path / "x.ffr") as pack:
        assert len(pack.list()) == count


def test_a_file_that_is_opened_again_must_be_as_it_was(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    few = OpenFiles(most=1)
    first, second = (ReopenedFile(str(tmp_path / name), few) for name in "ab")
    assert [file.read_bytes(0, 9) for file in (first, second, first)] == [b"a", b"b", b"a"]
    (tmp_path / "b").write_bytes(b"another")
    with pytest.raises(SourceChangedError, match="b: changed while it was read"):
        second.read_bytes(0, 9)
    (tmp_path / "b").unlink()
    with pytest.raises(SourceNotFoundError):
        second.read_bytes(0, 9)
    assert first.read_bytes(0, 9) == b"a"
    first.close()
    second.close()
