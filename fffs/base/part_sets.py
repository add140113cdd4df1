"""Names that sets of parts have, whoever writes them."""

from __future__ import annotations

from typing import Final

MANIFEST: Final = "fffs-parts.json"
"""What is written last where parts in a store appear one after the other; until then, UNFINISHED is beside them."""
UNFINISHED: Final = ".fffs-plan"
ENDINGS: Final = (".ffr", ".tfrecord", ".ofrecord")
"""Suffixes that the name of a target may have, which are not in the names of its parts."""
UNCOUNTED: Final = r"-[0-9]{6,10}-(?P<job>[0-9a-f]{8})\.ffr"
"""The end of names as of ``uncounted_part``."""


def uncounted_part(stem: str, number: int, fingerprint: str) -> str:
    """Return the name of a pack or FFRecord file of a set that is written before anybody knows how many parts it has.

    fingerprint: of the plan, in hexadecimal digits. A late attempt of another plan writes another name.
    """
    return f"{stem}-{number:08}-{fingerprint[:8]}.ffr"
