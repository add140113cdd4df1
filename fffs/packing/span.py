"""Span: a range of a folder's names in the order of a walk, depth first, the names of each folder sorted by bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

from fffs.packing.listing import NameRange

Components = tuple[bytes, ...]


class Span(NamedTuple):
    """What begins at the path ``start`` and ends before the path ``stop``, in the order of a walk.

    A folder comes right before its content. Neither path needs to exist. ``start`` is b"" from the beginning on, which
    is the folder that is walked; ``stop`` is b"" up to the end.
    """

    start: bytes = b""
    stop: bytes = b""

    def bounds(self) -> Bounds:
        """Return the bounds in the folder that is walked."""
        return Bounds(_components(self.start), _components(self.stop))


WHOLE: Final = Span()


class Bounds(NamedTuple):
    """What a span includes of one folder: its ends as names from this folder on; none at an end that is elsewhere."""

    start: Components = ()
    stop: Components = ()

    def names(self) -> NameRange:
        """Return the range of names in this folder that the span reaches."""
        first = self.start[0] if self.start else b""
        if not self.stop:
            return first, b""
        # If the span ends inside the folder of this name, the name itself is in the range; the next one ends in NUL.
        return first, self.stop[0] + (b"\0" if len(self.stop) > 1 else b"")

    def leads_to(self, name: bytes) -> bool:
        """Whether the span begins below this name: it is not in the span itself, but the folder of something in it."""
        return len(self.start) > 1 and self.start[0] == name

    def below(self, name: bytes) -> Bounds:
        """Return the bounds in a folder of this folder."""
        start = self.start[1:] if self.start[:1] == (name,) else ()
        stop = self.stop[1:] if self.stop[:1] == (name,) else ()
        return Bounds(start, stop)


def _components(path: bytes) -> Components:
    return tuple(path.split(b"/")) if path else ()
