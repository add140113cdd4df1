"""human, plural: numbers as text for messages; tell: prints a line about progress."""

from __future__ import annotations

import contextlib


def human(size: float) -> str:
    """Return a number of bytes as text: ``1.2 GB``."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def plural(count: int, what: str) -> str:
    """Return a count as text: ``1 file``, ``2 files``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def tell(line: str) -> None:
    """Print a line about progress. A standard output that cannot be written does not end the work."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
        print(line, flush=True)


def is_page(head: bytes) -> bool:
    """Whether what begins so is a page of a web server, or an answer in JSON, and not one of our files."""
    return head.lstrip()[:1] in (b"<", b"{")
