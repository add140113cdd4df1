"""survey_objects: lists a folder of a store once, divides its objects into parts, and keeps a list for each part.

Tasks read these lists instead of listing the folder again: a store need not list in an order that it can begin anywhere
in, and each object is asked for as it was when the plan was made.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import IO, Final

import numpy as np

from fffs.base.failures import writing
from fffs.errors import FormatError
from fffs.objects.client import ListedObject
from fffs.objects.names import ObjectName
from fffs.packing.division import SLICE, Division, NamedRun, cuts_in_folder
from fffs.packing.listing import WalkColumns
from fffs.packing.object_folder import key_prefix, list_folder, no_objects, parse_folder, two_names
from fffs.packing.pack_file import TREE_BYTES

Objects = Iterable[tuple[str, ListedObject]]
"""Objects with their paths from the folder on."""

_DIGEST: Final = 8  # bytes


class ObjectSurvey:
    """The listing of a folder. ``places``: where its parts begin, and the end."""

    def __init__(self, url: str, parts: int, spool: IO[bytes], where: str) -> None:
        """spool: a temporary file. where: its folder, for messages. Raises as ``survey_objects``."""
        self._folder, self._spool = parse_folder(url), spool
        self._last, self._above = "", list[str]()
        division, objects, first = Division(parts), list_folder(self._folder), True
        while some := list(itertools.islice(objects, SLICE)):
            lines = [_line(entry) for _, entry in some]
            with writing(where):
                spool.writelines(lines)
            division.add(self._run(some, lines, first))
            first = False
        if first:
            raise no_objects(self._folder)
        self.places = division.cut()

    def _run(self, some: list[tuple[str, ListedObject]], lines: list[bytes], is_first: bool) -> NamedRun:
        paths = [path for path, _ in some]
        sizes = np.array([entry.size for _, entry in some], np.int64)
        digests = np.frombuffer(b"".join(map(_digest, lines)), "<u8")
        depths = np.array([self._depth(path) for path in paths], np.int64)
        cuts = cuts_in_folder(len(some), is_first)
        return NamedRun(lambda k: paths[k].encode(), WalkColumns(sizes + TREE_BYTES, sizes, depths, digests, cuts))

    def _depth(self, path: str) -> int:
        """Return how many folders a path and the last one have in common."""
        self._refuse_folder(path)
        last, self._last = self._last, path
        folder = path[: path.rfind("/") + 1]
        if last.startswith(folder) and last.rfind("/") < len(folder):
            return folder.count("/")
        pairs = zip(folder.split("/")[:-1], last.split("/")[:-1], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _refuse_folder(self, path: str) -> None:
        """Raise UsageError if an object before this one, in ascending order, has the name of a folder of its path."""
        above = self._above  # paths that this one begins with
        while above and not path.startswith(above[-1]):
            above.pop()
        for name in above:
            if path[len(name)] == "/":
                folder = self._folder
                raise two_names(ObjectName(folder.scheme, folder.bucket, key_prefix(folder) + name))
        above.append(path)

    def lists(self) -> Iterator[Iterator[bytes]]:
        """Yield the lines of each part's list. Use each before the next."""
        self._spool.seek(0)
        for begin, end in itertools.pairwise(self.places):
            yield itertools.islice(self._spool, end.names - begin.names)


@contextlib.contextmanager
def survey_objects(url: str, parts: int, folder: str | None) -> Iterator[ObjectSurvey]:
    """List a folder of a store. folder: where a temporary file is made; None: where the system makes those.

    A part is as heavy as its objects, with TREE_BYTES for each name, as in ``survey``.

    Raises:
        UsageError: a key cannot be a path, or an object has the name of a folder.
        SourceNotFoundError: there are no objects. AccessError, ReadError: as ``list_entries``.
        WriteError: the temporary file cannot be written.

    """
    where = folder or tempfile.gettempdir()
    with writing(where):
        spool = tempfile.TemporaryFile(dir=where)  # noqa: SIM115 - its with-block must not be this one
    with spool:
        yield ObjectSurvey(url, parts, spool, where)


def read_list(data: bytes, shown: str, url: str, names: int, digest: int) -> Objects:
    """Return the objects of the list of a part.

    Args:
        data: the list.
        shown: its name, for messages.
        url: of the folder.
        names: how many objects there are.
        digest: the sum of the digests of their lines.

    Raises:
        FormatError: the list is not the one of the plan.

    """
    lines = data.splitlines(keepends=True)
    digests = np.frombuffer(b"".join(map(_digest, lines)), "<u8")
    if len(lines) != names or int(digests.sum(dtype=np.uint64)) != digest:
        raise FormatError(f"{shown}: this list of objects is damaged, or that of another plan; make a new plan")
    above = len(key_prefix(parse_folder(url)))
    objects = (ListedObject(*json.loads(line)) for line in lines)
    return [(entry.key[above:], entry) for entry in objects]


def _line(entry: ListedObject) -> bytes:
    return json.dumps(entry).encode("ascii") + b"\n"


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=_DIGEST).digest()
