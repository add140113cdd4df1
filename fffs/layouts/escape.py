"""Names that files may hold, features and keys, as names of files: percent-encoded, so that no two become one."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from fffs.tree.tree import NAME_MAX

ENDINGS: Final = (b".bin", b".jpg", b".mp4", b".msgpack", b".npy", b".png", b".txt", b".webm")
"""What is appended to names. Escaped names without an ending never end like that."""

EMPTY: Final = b"%"
CUT: Final = b"%~"
# Control characters can be in names, but ruin listings. Surrogates are bytes that are not UTF-8.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f%/\ud800-\udfff]")


def file_name(name: bytes, ending: bytes = b"") -> bytes:
    """The file for a name: the name with an ending, one of ``ENDINGS`` or none.

    ``%``, ``/``, control characters and bytes that are not UTF-8 become ``%XX``; so do the dots of ``.`` and ``..``
    and, where there is no ending, the dot of what looks like one. No name at all is ``%``. What would be longer than
    a file name may be is cut, and ``%~`` and the SHA-256 of the name follow.
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
    """Without the part of a character that a cut left at the end."""
    for k in (1, 2):  # %X or %
        if cut[-k : -k + 1 or None] == b"%":
            return cut[:-k]
    return cut.decode("utf-8", "ignore").encode()
