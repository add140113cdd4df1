"""Turns names of features and keys into distinct names of files, by percent-encoding."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from fffs.tree.tree import NAME_MAX

ENDINGS: Final = (b".bin", b".jpg", b".mp4", b".msgpack", b".npy", b".png", b".txt", b".webm")
"""The endings that are appended to names. An escaped name without an ending never ends like one of these."""

EMPTY: Final = b"%"
CUT: Final = b"%~"
# Control characters are allowed in file names, but garble listings. Surrogates stand for bytes that are not UTF-8.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f%/\ud800-\udfff]")


def file_name(name: bytes, ending: bytes = b"") -> bytes:
    """Return the file name for a name, with an ending that is one of ``ENDINGS`` or empty.

    ``%``, ``/``, control characters and bytes that are not UTF-8 become ``%XX``; so do the dots of ``.`` and ``..``
    and, without an ending, the last dot of a name that looks as if it had one. The empty name becomes ``%``. A name
    that is too long for a file is cut, and followed by ``%~`` and the SHA-256 of the original name.
    """
    text = name.decode("utf-8", "surrogateescape")
    safe = _UNSAFE.sub(_encode, text).encode() if _UNSAFE.search(text) else name
    if not safe:
        safe = EMPTY
    elif safe in (b".", b".."):
        safe = safe.replace(b".", b"%2E")
    if not ending and safe.endswith(ENDINGS):
        stem, _, last = safe.rpartition(b".")
        safe = stem + b"%2E" + last
    if len(safe) + len(ending) > NAME_MAX:
        tail = CUT + hashlib.sha256(name).hexdigest().encode()
        safe = _whole(safe[: NAME_MAX - len(ending) - len(tail)]) + tail
    return safe + ending


def _encode(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code & 0xFF:02X}"


def _whole(cut: bytes) -> bytes:
    """Remove an incomplete character or ``%XX`` from the end of a name that was cut."""
    for k in (1, 2):  # %X or %
        if cut[-k : -k + 1 or None] == b"%":
            return cut[:-k]
    return cut.decode("utf-8", "ignore").encode()
