"""Names that sets of parts have, whoever writes them."""

from __future__ import annotations

from typing import Final

MANIFEST: Final = "fffs-parts.json"
"""What is written last where parts in a store appear one after the other; until then, UNFINISHED is beside them."""
UNFINISHED: Final = ".fffs-plan"
ENDINGS: Final = (".ffr", ".tfrecord", ".ofrecord")
"""Suffixes that the name of a target may have, which are not in the names of its parts."""
