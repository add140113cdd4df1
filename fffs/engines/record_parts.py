"""RecordParts: a folder of FFRecord parts that the workers of an engine write; it appears when all are written."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fffs.base.paths import PathLike, absolute_path, named
from fffs.base.text import plural
from fffs.cluster.plan_folder import PlanFolder
from fffs.cluster.plan_place import part_stem
from fffs.engines.packed_rows import pack_rows
from fffs.errors import UsageError
from fffs.files.atomic_folder import make_folder, refuse_content
from fffs.files.targets import refuse_folder, without_dots
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.part_names import shard_name
from fffs.layouts import packed, union
from fffs.objects.names import is_url
from fffs.writer import FileWriter


class WrittenPart(NamedTuple):
    """What a worker wrote: the number of the partition, and the name of its file, if it has any records."""

    number: int
    name: str
    records: int


@dataclass(frozen=True)
class RecordParts:
    """The parts of ``target``, a folder by its absolute path. Can be pickled, for the workers."""

    target: str
    fingerprint: str
    packed: bool = False
    """Whether parts are packed folders, of rows of (path, bytes)."""
    mtime_ns: int = 0

    @classmethod
    @contextlib.contextmanager
    def begin(cls, target: PathLike, packed: bool = False) -> Iterator[RecordParts]:
        """Make the parts of a target for the block. Afterwards, the target is there, or nothing.

        packed: whether they are packed folders.

        Raises:
            UsageError: the target exists, or is in a store. WriteError: it cannot be written, or another process does.

        """
        name = named(target, "the target")
        if is_url(name):
            raise UsageError(f"{name}: parts are written to folders; copy them to the store afterwards")
        refuse_content(name)
        path = os.fsdecode(without_dots(os.fsencode(absolute_path(name))))
        refuse_folder(os.fsencode(path), name)
        make_folder(os.path.dirname(path))
        folder, fingerprint = PlanFolder(path), secrets.token_hex(16)
        with folder.only_driver():
            folder.create("", json.dumps(["records", fingerprint]), fingerprint, False, parts=())
            try:
                yield cls(path, fingerprint, packed, time.time_ns())
            finally:
                if folder.fingerprint() == fingerprint:
                    folder.remove()

    def write(self, number: int, records: Sequence[Any]) -> WrittenPart:
        """Write the records, or the rows, of a partition, in any process. May run again, also at the same time.

        Raises UsageError if the parts are not wanted any more; also what ``FileWriter`` or ``pack_rows`` raises.
        """
        folder = PlanFolder(self.target)
        folder.check(self.fingerprint)
        name = f"{number:06}-{secrets.token_hex(6)}{SUFFIX}"
        if records and self.packed:
            with folder.new_part(name, self.fingerprint) as file:
                pack_rows(records, file, f"{self.target}: partition {number}", self.mtime_ns)
                file.commit()
        elif records:
            with FileWriter(folder.new_part(name, self.fingerprint), len(records)) as writer:
                for record in records:
                    writer.write_one(record)
        return WrittenPart(number, name, len(records))

    def commit(self, written: Iterable[WrittenPart]) -> int:
        """Let the target appear with the parts that have records, in the order of the partitions.

        Returns the number of records. Raises UsageError: there are none; WriteError.
        """
        folder, parts = PlanFolder(self.target), sorted(part for part in written if part.records)
        if not parts:
            raise UsageError(f"{self.target}: there are no records to write")
        names = [(part.name, shard_name(part_stem(self.target), k, len(parts), SUFFIX)) for k, part in enumerate(parts)]
        count = sum(part.records for part in parts)
        if self.packed:
            self._refuse_hidden([folder.part(name) for name, _ in names], count)
        folder.put_in_place(names, self.fingerprint)
        return count

    def _refuse_hidden(self, paths: list[str], count: int) -> None:
        """Raise UsageError if a file of a part would be hidden by one of an earlier part."""
        found = union.merge(*packed.load_trees(paths), 1)
        for path, _ in found.named:
            shown = int((found.tree.kinds == stat.S_IFREG).sum())
            raise UsageError(
                f"{self.target}: {plural(count - shown, 'row')} with a path that is in another partition, too: "
                f"{os.fsdecode(path)!r}"
            )
