"""RecordParts: a folder of FFRecord parts, also in a store, that the workers of an engine write; all appear at once."""

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

from fffs.base.part_sets import uncounted_part
from fffs.base.paths import PathLike
from fffs.base.text import plural
from fffs.cluster.part_plan import engine_plan, manifest_of
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import part_stem
from fffs.cluster.plan_target import absolute_target, refuse_parts
from fffs.engines.packed_rows import pack_rows
from fffs.errors import FffsError, UsageError
from fffs.files.atomic_folder import make_folder
from fffs.files.atomic_output import AtomicOutput
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.part_names import ffrecord_shard
from fffs.layouts import packed, union
from fffs.objects.names import is_url
from fffs.writer import FileWriter


class WrittenPart(NamedTuple):
    """What a worker wrote: the number of the partition, and the path or URL and size of its file, if it has records."""

    part: int
    path: str = ""
    size: int = 0
    records: int = 0


@dataclass(frozen=True)
class RecordParts:
    """The parts of ``target``, a folder by its absolute path or URL. Can be pickled, for the workers."""

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
            UsageError: the target exists, or no parts can be written there. WriteError: it cannot be written, or
            another process does. AccessError, ReadError: of a store.

        """
        name, fingerprint = absolute_target(target), secrets.token_hex(16)
        refuse_parts(name, 1, lambda stem, number, _: uncounted_part(stem, number, fingerprint))
        if not is_url(name):
            make_folder(os.path.dirname(name))
        place = place_of(name)
        with place.only_driver():
            place.create(engine_plan(), json.dumps(["records", fingerprint]), fingerprint, False, parts=())
            try:
                yield cls(name, fingerprint, packed, time.time_ns())
            except BaseException as error:
                place.clean_up(error, lambda: place.remove_plan(fingerprint))
                raise
            with contextlib.suppress(FffsError):  # the next job removes it
                place.remove_plan(fingerprint)

    def write(self, number: int, records: Sequence[Any]) -> WrittenPart:
        """Write the records, or the rows, of a partition, in any process. May run again, also at the same time.

        Raises UsageError if the parts are not wanted any more; also what ``FileWriter`` or ``pack_rows`` raises.
        """
        place = place_of(self.target)
        place.check(self.fingerprint)
        if not records:
            return WrittenPart(number)
        name, mark = uncounted_part(part_stem(self.target), number, self.fingerprint), secrets.token_hex(6)
        with place.new_part(name, self.fingerprint, mark) as file:
            size = self._fill(file, number, records)
        try:
            place.check(self.fingerprint)
        except UsageError:  # it was aborted while a store put the part in place
            place.remove_stray(name, self.fingerprint)
            raise
        return WrittenPart(number, place.part(name, mark), size, len(records))

    def _fill(self, file: AtomicOutput, number: int, records: Sequence[Any]) -> int:
        """Write a part, and put it in place. Returns its size."""
        if self.packed:
            pack_rows(records, file, f"{self.target}: partition {number}", self.mtime_ns)
            size = os.fstat(file.fd).st_size
            file.commit()
            return size
        with FileWriter(file, len(records)) as writer:
            for record in records:
                writer.write_one(record)
            writer.finish()
            return os.fstat(file.fd).st_size

    def commit(self, written: Iterable[WrittenPart]) -> int:
        """Let the target appear with the parts that have records, in the order of the partitions.

        Returns the number of records. Raises UsageError: there are none, or what is there is of another attempt that
        wrote other bytes; WriteError.
        """
        place, parts = place_of(self.target), sorted(part for part in written if part.records)
        if not parts:
            raise UsageError(f"{self.target}: there are no records to write")
        sizes = place.sizes(self.fingerprint)
        self._refuse_others(parts, sizes)
        for name in sizes.keys() - {os.path.basename(part.path) for part in parts}:
            if name.endswith(f"-{self.fingerprint[:8]}{SUFFIX}"):
                place.remove_stray(name, self.fingerprint)  # of a worker that died, and whose rows are in other parts
        count = sum(part.records for part in parts)
        if self.packed:
            self._refuse_hidden([part.path for part in parts], count)
        stem = part_stem(self.target)
        names = [(os.path.basename(part.path), ffrecord_shard(stem, k, len(parts))) for k, part in enumerate(parts)]
        place.put_in_place(names, self.fingerprint, manifest_of(self.fingerprint, [part._asdict() for part in parts]))
        return count

    def _refuse_others(self, parts: list[WrittenPart], sizes: dict[str, int]) -> None:
        """Raise UsageError unless the parts are there. In a store, all attempts at one write the same object."""
        for part in parts:
            if sizes.get(os.path.basename(part.path)) != part.size:
                raise UsageError(
                    f"{part.path}: partition {part.part} has vanished, or was written twice with different records; "
                    "run the job again, with partitions that are the same each time they are computed"
                )

    def _refuse_hidden(self, paths: list[str], count: int) -> None:
        """Raise UsageError if a file of a part would be hidden by one of an earlier part."""
        found = union.merge(*packed.load_trees(paths), 1)
        for path, _ in found.named:
            shown = int((found.tree.kinds == stat.S_IFREG).sum())
            raise UsageError(
                f"{self.target}: {plural(count - shown, 'row')} with a path that is in another partition, too: "
                f"{os.fsdecode(path)!r}"
            )
