"""PackTask: packs a part of a folder, local or in a store, into one file of a set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fffs.base.jobs import Progress, default_jobs
from fffs.cluster.part_task import PartResult, PartTask
from fffs.cluster.place_of import place_of
from fffs.errors import SourceChangedError
from fffs.files.atomic_output import NewOutput
from fffs.objects.names import is_url
from fffs.packing.contents import pack_contents
from fffs.packing.division import CutPlace
from fffs.packing.left_out import LeftOut
from fffs.packing.object_folder import ObjectFolder
from fffs.packing.object_survey import read_list
from fffs.packing.packer import Copied, PackSummary, copied
from fffs.packing.scan import Scan, scan_folder
from fffs.packing.source_folder import SourceFolder, open_source
from fffs.packing.span import Span
from fffs.packing.whole import has_header, is_whole_pack, shortened


class PackOptions(NamedTuple):
    """How parts are packed, as for ``pack_folder``."""

    align: bool = False
    keep_going: bool = False


@dataclass(frozen=True)
class PackTask(PartTask):
    """Packs the part of a folder from the path ``start`` on, and before ``stop``.

    This is meant in the order of a sorted walk; in a folder of a store, in the order in which the store lists it.
    ``names``, ``total_bytes`` and ``digest``: of what lies between, when the plan was made.
    """

    source: str
    start: bytes
    stop: bytes
    names: int
    digest: int
    align: bool = False
    keep_going: bool = False

    def to_fields(self) -> dict[str, Any]:
        """See ``PartTask``."""
        return _fields(self.start, self.stop, self.names, self.total_bytes, self.digest)

    @staticmethod
    def from_fields(fields: dict[str, Any]) -> dict[str, Any]:
        """See ``PartTask``."""
        start, stop = (str(fields[name]).encode("utf-8", "surrogateescape") for name in ("start", "stop"))
        numbers = {name: int(fields[name]) for name in ("names", "total_bytes")}
        return {"start": start, "stop": stop, **numbers, "digest": int(fields["digest"], 16)}

    @property
    def shown(self) -> str:
        """The input, for messages."""
        end = f" up to {os.fsdecode(self.stop)}" if self.stop else ""
        return f"{self.source} from {os.fsdecode(self.start) or 'its beginning'}{end}"

    def _write(self, new: NewOutput, jobs: int | None, progress: Progress | None) -> PartResult:
        lines: list[str] = []
        left_out = LeftOut()
        pack = self._objects if is_url(self.source) else self._files
        with pack(new, lines.append, left_out, jobs or default_jobs(), progress) as (done, apart):
            size = os.fstat(done.file.fd).st_size
            done.file.commit()
        lines += left_out.lines
        return PartResult(
            part=self.number,
            path=self.path,
            size=size,
            checksum=done.checksum,
            records=done.summary.files,
            total_bytes=done.summary.total_bytes,
            left_out=shortened(lines),
            apart=apart,
            unread=left_out.unread,
            changed=left_out.changed,
        )

    @contextlib.contextmanager
    def _files(
        self, new: NewOutput, warn: Callable[[str], None], left_out: LeftOut, jobs: int, progress: Progress | None
    ) -> Iterator[_Packed]:
        """Yield a part of a local folder."""
        with open_source(os.fsencode(self.source), left_out if self.keep_going else None) as source:
            scan = scan_folder(source, None, warn, Span(self.start, self.stop))
            if scan.digest != self.digest:
                self._changed(scan, source)
            apart = _count_apart(scan)
            with copied(scan, source, self.align, new, jobs, progress) as done:
                yield done, apart

    @contextlib.contextmanager
    def _objects(
        self, new: NewOutput, warn: Callable[[str], None], left_out: LeftOut, jobs: int, progress: Progress | None
    ) -> Iterator[_Packed]:
        """Yield a part with the objects that the plan listed. None is left out."""
        place = place_of(self.target)
        listed = place.read_input(self.number, self.fingerprint)
        shown = f"{place.path}/{place.input(self.number)}"
        with new() as file, ObjectFolder(self.source, warn) as folder:
            contents = folder.scan(read_list(listed, shown, self.source, self.names, self.digest))
            checksum = pack_contents(folder, contents, file, jobs, progress, self.align)
            yield Copied(file, PackSummary(len(contents.sizes), contents.total_bytes), checksum), 0

    def _changed(self, scan: Scan, source: SourceFolder) -> None:
        """Raise the error for a part of a folder that changed, or keep going. It names what changed last."""
        statuses = scan.listing.statuses
        last = np.lexsort((statuses["ctime_ns"], statuses["ctime"]))[-1:].tolist()
        path = scan.listing.path(last[0] + 1) if last else b""
        what = f"{source.shown(b'')}: changed after the plan was made, at last probably {source.shown(path)}"
        if not source.leave_out:
            raise SourceChangedError(f"{what}; make a new plan when nothing changes it")
        source.leave_out(SourceChangedError(f"{what}: what was there is"))

    def is_of(self, path: str, result: PartResult) -> bool:
        """See ``PartTask``. Two attempts may have met different failures."""
        return not self.keep_going or has_header(path, result)

    def _is_whole(self, path: str, result: PartResult) -> bool:
        return is_whole_pack(path, result)


def cut_fields(begin: CutPlace, end: CutPlace) -> dict[str, Any]:
    """Return the fields of the task for what lies between two places, as of ``PackTask.to_fields``."""
    digest = (end.digest - begin.digest) % 2**64
    return _fields(begin.path, end.path, end.names - begin.names, end.size - begin.size, digest)


def _fields(start: bytes, stop: bytes, names: int, total_bytes: int, digest: int) -> dict[str, Any]:
    """Return fields as JSON can hold them: 64 bits as text, because other readers of JSON lose some of a number."""
    return {
        "start": start.decode("utf-8", "surrogateescape"),
        "stop": stop.decode("utf-8", "surrogateescape"),
        "names": names,
        "total_bytes": total_bytes,
        "digest": f"{digest:016x}",
    }


_Packed = tuple[Copied, int]
"""What a task wrote, and how many files have further names elsewhere."""


def _count_apart(scan: Scan) -> int:
    """Return how many files have more names than were scanned."""
    links = scan.listing.statuses["links"][scan.entries]
    files = (scan.tree.mode & 0o170000) == 0o100000
    found = np.zeros(len(scan.entries), np.uint32)
    found[scan.tree.ref[files]] = scan.tree.nlink[files]
    return int((links > found).sum())
