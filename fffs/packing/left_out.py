"""LeftOut: what was left out of a pack because it could not be read, or changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from fffs.errors import ReadError, SourceChangedError, UsageError
from fffs.objects.names import is_url, shown
from fffs.packing.source_folder import Unreadable


@dataclass
class LeftOut:
    """Collects errors, from any thread."""

    failures: list[Unreadable] = field(default_factory=list)

    def __call__(self, failure: Unreadable) -> None:
        """Add the error of something that is left out."""
        self.failures.append(failure)

    @property
    def lines(self) -> list[str]:
        """A line for each, in an order that does not depend on threads."""
        return sorted(f"{failure}; left out" for failure in self.failures)

    @property
    def unread(self) -> int:
        """How many could not be read."""
        return sum(isinstance(failure, ReadError) for failure in self.failures)

    @property
    def changed(self) -> int:
        """How many changed."""
        return sum(isinstance(failure, SourceChangedError) for failure in self.failures)


def refuse_objects(source: str, keep_going: bool) -> None:
    """Raise UsageError if objects are to be left out: a store that does not answer would leave out all of them."""
    if keep_going and is_url(source):
        raise UsageError(f"{shown(source)}: keep_going is for local folders; omit it")
