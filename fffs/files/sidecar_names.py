"""The names of sidecars: files beside another one, which describe it and must not outlive it."""

from __future__ import annotations

import os
from typing import Final

CHECKSUMS: Final = ".fffs-crc"
"""The ending of the file of checksums (``fffs.records.sidecar``)."""

DIGEST: Final = ".fsverity"
"""That of the digest of fs-verity (``fffs.files.verity``)."""

SIDECARS: Final = (CHECKSUMS, DIGEST)


def real_path(path: str) -> str:
    """Return where a symbolic link leads to now, or the path if it is none.

    Sidecars are beside the file itself: beside a link they would be taken for those of the next file it leads to.
    """
    return os.path.realpath(path) if os.path.islink(path) else path
