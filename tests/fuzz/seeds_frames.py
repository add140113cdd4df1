"""Seeds for fuzzing TFRecord and OFRecord files, made from the golden files."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from frame_files import OFRECORD, TFRECORD, FrameGolden, of_frame, tf_frame, tf_head

from fuzz import fuzz_ofrecord as of
from fuzz import fuzz_tfrecord as tf

Seeds = Iterator[tuple[str, bytes]]
LARGEST = 6000  # larger golden files would only be slow


def files(golden: FrameGolden) -> Seeds:
    """Yield the small golden files and the damaged ones."""
    for path in golden.single():
        if len(golden.bytes(path)) <= LARGEST:
            yield path.replace("/", "-"), golden.bytes(path)
    for identity in golden.corruptions:
        yield identity, golden.corrupt(identity)


def damaged_messages(message: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """Yield messages that differ little from a good one."""
    for _ in range(count):
        data = bytearray(message)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        yield bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data)


def messages(golden: FrameGolden, content: dict[str, int]) -> Seeds:
    """Yield the golden messages, intact and damaged. content: the first byte for each kind."""
    chance = random.Random(20240613)
    for path in golden.single():
        entry = golden.files[path]
        what = content.get(entry.get("content", "message"))
        if what is None or entry.get("compression") or len(golden.bytes(path)) > LARGEST:
            continue
        for k, message in enumerate(golden.records(path)[:4]):
            name = f"{path.replace('/', '-')}-{k}"
            yield name, bytes([what]) + message
            for j, bad in enumerate(damaged_messages(message, chance, 6) if message else ()):
                yield f"{name}-damaged-{j}", bytes([what]) + bad


def tfrecord() -> Seeds:
    chance = random.Random(20240614)
    for name, data in files(TFRECORD):
        yield f"file-{name}", bytes([tf.FILE]) + data
        yield f"stream-{name}", bytes([tf.COMPRESSED]) + data
    for claim in (0, 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 17, 2**64 - 1):
        yield f"claim-{claim}", bytes([tf.FILE]) + tf_frame(b"good") + tf_head(claim) + bytes(20)
        yield f"stream-claim-{claim}", bytes([tf.COMPRESSED]) + tf_frame(b"good") + tf_head(claim) + bytes(20)
    for k in range(60):
        yield f"recipe-{k}", bytes([tf.RECIPE]) + chance.randbytes(k)
        yield f"compressed-{k}", bytes([tf.DAMAGED]) + chance.randbytes(4 + k)
    for name, text in index_files():
        yield f"index-{name}", bytes([tf.INDEX]) + text
    yield from messages(TFRECORD, {"example": tf.EXAMPLE, "image": tf.EXAMPLE, "sequence": tf.SEQUENCE})


def index_files() -> Seeds:
    good = b"0 16\n16 19\n35 216\n"
    yield "good", good
    yield "without-end", good[:-1]
    yield "dos", good.replace(b"\n", b"\r\n")
    yield "cut", good[:-3]
    yield "missing-line", good[:11]
    yield "one-more", good + b"251 16\n"
    yield "empty-line", good + b"\n"
    yield "negative", good.replace(b"16 19", b"-16 19")
    yield "huge", good.replace(b"16 19", b"9" * 40 + b" 19")
    yield "long-line", b"1" * 100_000
    yield "zeros", b"\0" * 100
    yield "nothing", b""


def ofrecord() -> Seeds:
    chance = random.Random(20240615)
    for name, data in files(OFRECORD):
        yield f"file-{name}", bytes([of.FILE]) + data
    for claim in (0, 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1):
        yield f"claim-{claim}", bytes([of.FILE]) + of_frame(b"good") + struct.pack("<Q", claim) + bytes(20)
    for k in range(60):
        yield f"recipe-{k}", bytes([of.RECIPE]) + chance.randbytes(k)
        yield f"entry-{k}", bytes([of.ENTRY]) + chance.randbytes(k)
        yield f"mended-entry-{k}", bytes([of.ENTRY | 4]) + chance.randbytes(4 + k)
        yield f"sidecar-{k}", bytes([of.ENTRY | 8]) + struct.pack("<HBB", k, 1 << k % 8, 0)
        yield f"mended-sidecar-{k}", bytes([of.ENTRY | 12]) + struct.pack("<HBB", k, 1 << k % 8, 0)
    yield from messages(OFRECORD, {"message": of.MESSAGE})
