"""Fuzzes TFRecord files: frames, messages, index files and compressed files against slow models of each.

Input: one byte (the kind of the rest), then the rest: a file; a recipe for frames; an Example; a SequenceExample; an
index file; a compressed file; a file that is compressed and then damaged.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import Any

from frame_files import crc32c, masked, tf_frame, tf_head
from inside import FrameError

from fffs import FileReader, tfrecord
from fffs.errors import ChecksumError, FormatError
from fuzz import frames, messages, surface
from fuzz.cursor import Cursor

FILE, RECIPE, EXAMPLE, SEQUENCE, INDEX, COMPRESSED, DAMAGED = range(7)
INDEXED = b"".join(tf_frame(bytes([k]) * k) for k in (0, 3, 200))
LARGEST = 1 << 20
FRAMES = 30  # in a recipe, because the model is slow


def recipe(cursor: Cursor) -> bytes:
    """Return a file whose frames are right, except for the changes in the input."""
    out = b""
    for _ in range(FRAMES):
        if not cursor:
            break
        what, length = cursor.take(1), cursor.take(1)
        data = bytes(length)
        frame = tf_frame(data)
        if what & 7 == 1:
            frame = tf_head(cursor.take(8)) + data
        elif what & 7 == 2:
            frame = frame[:8] + struct.pack("<I", cursor.take(4)) + frame[12:]
        elif what & 7 == 3:
            frame = frame[:-4] + struct.pack("<I", cursor.take(4))
        elif what & 7 == 4:
            frame = frame[: cursor.take(1)]
        out += frame
    return out


def check_message(data: bytes, decode: Any, model: Any, plain: Any, encode: Any) -> None:
    """Check that a message that the specification accepts decodes to the same value, also after encoding, and that
    others are an error.
    """
    try:
        expected = model(data)
    except messages.BadMessageError:
        expected = None
    try:
        found = decode(data)
    except tfrecord.MessageError as error:
        assert expected is None or "decode_sequence" in str(error)
        return
    assert plain(found) == expected
    assert plain(decode(encode(found))) == expected


def check_index_file(text: bytes) -> None:
    """Check that an index file is accepted if its lines equal the frames, with any line ends."""
    same = numbers(text.split(b"\n")) == [(0, 16), (16, 19), (35, 216)]
    with surface.file_of(INDEXED) as path, surface.file_of(text) as index_path:
        with FileReader(path, format="tfrecord") as reader:
            try:
                tfrecord.check_index_file(reader.index(), index_path)
                assert same
            except FormatError as error:
                assert not same
                assert "line" in str(error)


def numbers(lines: list[bytes]) -> list[tuple[int, int]] | None:
    """Return the numbers in the lines of an index file, or None if a line has none; only the last may be empty."""
    if lines[-1] == b"":
        lines = lines[:-1]
    found = []
    for line in lines:
        words = line.removesuffix(b"\r").split(b" ")
        if len(words) != 2 or not all(word.isdigit() and len(word) <= 18 for word in words):
            return None
        found.append((int(words[0]), int(words[1])))
    return found


def stream(path: str, **options: Any) -> tuple[list[Any], Exception | None]:
    """Return the records of a file in order, "bad" for those with a wrong checksum, and the error at the end."""
    found: list[Any] = []
    with tfrecord.read(path, max_record=LARGEST, **options) as records:
        while True:
            try:
                found.append(next(records))
            except StopIteration:
                return found, None
            except ChecksumError as error:
                assert error.record == len(found)
                found.append("bad")
            except FrameError as error:
                assert error.record == len(found)
                assert next(records, None) is None
                return found, error


def check_stream(data: bytes, plain: bytes) -> None:
    """Check that the records before damage are returned and then an error is raised; all of them if there is none."""
    rows, at = frames.tf_frames(plain)
    expected = [plain[a:b] if crc32c(plain[a:b]) == crc else "bad" for a, b, crc in rows]
    with surface.file_of(data) as path:
        found, error = stream(path)
        unchecked, _ = stream(path, check_data=False)
    assert found == expected[: len(found)]
    assert len(unchecked) == len(found)
    if error is None:
        assert len(found) == len(expected)
        assert at == len(plain)


def inflated(data: bytes) -> bytes:
    """Return all that zlib can decompress of a file, however damaged."""
    out = b""
    while data and len(out) < LARGEST:
        machine = zlib.decompressobj(47)
        step = b""
        with contextlib.suppress(zlib.error):
            for k in range(len(data)):
                step = machine.decompress(data[k : k + 1], LARGEST)
                out += step
                if machine.eof:
                    break
        if not machine.eof:
            break
        data = data[k + 1 :] if data[:2] == b"\x1f\x8b" else b""
    return out


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    what, rest = cursor.take(1) % 7, cursor
    if what == FILE:
        frames.check_tfrecord(rest.rest())
    elif what == RECIPE:
        made = recipe(rest)
        frames.check_tfrecord(made)
        if is_plain(made):
            check_stream(made, made)
    elif what == EXAMPLE:
        check_message(rest.rest(), tfrecord.decode, messages.example, messages.plain, tfrecord.encode)
    elif what == SEQUENCE:
        check_message(
            rest.rest(),
            tfrecord.decode_sequence,
            messages.sequence,
            messages.plain_sequence,
            lambda found: tfrecord.encode_sequence(found["context"], found["feature_lists"]),
        )
    elif what == INDEX:
        check_index_file(rest.rest())
    elif what == COMPRESSED:
        made = rest.rest()
        check_stream(made, made if is_plain(made) else inflated(made))
    else:
        at, mask, level = rest.take(2), rest.take(1), rest.take(1) % 10
        made = bytearray(zlib.compress(recipe(rest), level))
        made[at % len(made)] ^= mask
        check_stream(bytes(made), bytes(made) if is_plain(bytes(made)) else inflated(bytes(made)))


def is_plain(data: bytes) -> bool:
    """Whether the first bytes of a file show that it is not compressed."""
    if len(data) >= 12 and data[8:12] == struct.pack("<I", masked(crc32c(data[:8]))):
        return True
    zlib_head = len(data) >= 2 and data[0] % 16 == 8 and data[0] < 128 and (data[0] * 256 + data[1]) % 31 == 0
    return not (zlib_head or data[:3] == b"\x1f\x8b\x08")
