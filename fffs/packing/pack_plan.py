"""plan_pack: divides a folder into the parts of a set, each a packed folder that any process can write."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fffs.base.jobs import Progress, default_jobs
from fffs.base.paths import PathLike, absolute_path, named
from fffs.base.text import plural
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.part_task import PartResult, PartTask
from fffs.cluster.plan_folder import PlanFolder
from fffs.errors import FffsError, FormatError, SourceChangedError, UsageError
from fffs.files.atomic_folder import refuse_content
from fffs.files.targets import refuse_folder, without_dots
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.part_names import shard_name
from fffs.layouts import load_packed
from fffs.objects.names import is_url
from fffs.objects.new_object import new_output
from fffs.packing.division import CutPlace
from fffs.packing.packer import Packer
from fffs.packing.scan import Scan, scan_folder
from fffs.packing.source_folder import SourceFolder, open_source
from fffs.packing.span import Span
from fffs.packing.survey import survey
from fffs.packing.verify import verify
from fffs.tree.tree import NAME_MAX

FORMAT: Final = "fffs plan 1"
PARTS_MAX: Final = 4096
LEFT_OUT_MAX: Final = 100  # lines in a result


@dataclass(frozen=True)
class PackTask(PartTask):
    """Packs the part of a folder from the path ``start`` on, and before ``stop``, in the order of a sorted walk.

    ``names``, ``total_bytes`` and ``digest``: what lies between, when the plan was made.
    """

    source: str
    start: bytes
    stop: bytes
    names: int
    total_bytes: int
    digest: int
    align: bool = False

    @property
    def shown(self) -> str:
        """The input, for messages."""
        end = f" up to {os.fsdecode(self.stop)}" if self.stop else ""
        return f"{self.source} from {os.fsdecode(self.start) or 'its beginning'}{end}"

    def _write(self, path: str, jobs: int | None, progress: Progress | None) -> PartResult:
        left_out: list[str] = []
        with open_source(os.fsencode(self.source)) as source:
            scan = scan_folder(source, None, left_out.append, Span(self.start, self.stop))
            if scan.digest != self.digest:
                raise _changed(scan, source)
            apart = _count_apart(scan)
            with new_output(path) as file:
                summary = Packer(scan, source, self.align).run(file, jobs or default_jobs(), progress)
                size, checksum = os.fstat(file.fd).st_size, _checksum_of(file.fd)
                file.commit()
        if len(left_out) > LEFT_OUT_MAX:
            left_out[LEFT_OUT_MAX:] = [f"... and {plural(len(left_out) - LEFT_OUT_MAX, 'more input')} left out"]
        return PartResult(
            part=self.number,
            path=self.path,
            size=size,
            checksum=checksum,
            records=summary.files,
            total_bytes=summary.total_bytes,
            left_out=tuple(left_out),
            apart=apart,
        )

    def _is_whole(self, path: str, result: PartResult) -> bool:
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size != result.size or _checksum_of(file.fileno()) != result.checksum:
                    return False
            with load_packed(path) as pack:
                return not verify(pack)
        except (OSError, FffsError):
            return False


def _checksum_of(fd: int) -> int:
    """Return the checksum in the header of a pack: of the checksums and places of all of its records."""
    return int.from_bytes(os.pread(fd, 4, 0), "little")


def _count_apart(scan: Scan) -> int:
    """Return how many files have more names than were scanned."""
    links = scan.listing.statuses["links"][scan.entries]
    files = (scan.tree.mode & 0o170000) == 0o100000
    found = np.zeros(len(scan.entries), np.uint32)
    found[scan.tree.ref[files]] = scan.tree.nlink[files]
    return int((links > found).sum())


def _changed(scan: Scan, source: SourceFolder) -> SourceChangedError:
    """Return the error for a part of a folder that changed. It names what changed last."""
    statuses = scan.listing.statuses
    last = np.lexsort((statuses["ctime_ns"], statuses["ctime"]))[-1:].tolist()
    path = scan.listing.path(last[0] + 1) if last else b""
    return SourceChangedError(
        f"{source.shown(b'')}: changed after the plan was made, at last probably {source.shown(path)}; make a new plan "
        "when nothing changes it"
    )


@dataclass(frozen=True)
class PackPlan(PartPlan):
    """A plan for packing a folder into parts."""

    source: str
    align: bool = False

    @property
    def total_bytes(self) -> int:
        """The bytes of all files; hard links count at each name."""
        return sum(task.total_bytes for task in self.tasks if isinstance(task, PackTask))

    def to_json(self) -> str:
        """Return the plan as text of ASCII characters. Names that are not UTF-8 have surrogates, as of ``fsdecode``."""
        tasks = [_fields(task) for task in self.tasks if isinstance(task, PackTask)]
        plan = {
            "format": FORMAT,
            "work": "pack",
            "source": self.source,
            "target": self.target,
            "align": self.align,
            "fingerprint": self.fingerprint,
            "tasks": tasks,
        }
        return json.dumps(plan)

    @classmethod
    def from_json(cls, text: str) -> PackPlan:
        """Return the plan of a text. Raises FormatError if it is none, or damaged."""
        try:
            fields = json.loads(text)
            if (fields["format"], fields["work"]) != (FORMAT, "pack"):
                raise FormatError(f"not a plan of this version for packing, but {fields['format']!a:.40}")
            source, target, align = str(fields["source"]), str(fields["target"]), bool(fields["align"])
            plan = _plan(source, target, align, [_unfielded(task) for task in fields["tasks"]])
            intact = plan.fingerprint == fields["fingerprint"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"not a plan for packing, or a damaged one ({error!a:.80})") from error
        if not intact:
            raise FormatError("a damaged plan: its fingerprint differs; make a new one")
        return plan

    @classmethod
    def load(cls, target: PathLike) -> PackPlan:
        """Return the plan that ``plan_pack`` made for a target and that is not committed yet.

        Raises:
            SourceNotFoundError: there is none. FormatError: it is damaged. UsageError, ReadError: it cannot be read.

        """
        return cls.from_json(PlanFolder(absolute_path(named(target, "the target"))).plan())


def plan_pack(
    source: PathLike, target: PathLike, parts: int, *, align: bool = False, restart: bool = False
) -> PackPlan:
    """Plan how to pack a folder into a set of parts, on any machines.

    The parts are about equally large, unless single files are larger; a folder is divided only if that is necessary.
    The same folder gives the same parts, whoever writes them. The plan is kept in ``.NAME.fffs-plan`` beside the
    target until ``commit`` or ``abort``: a plan for the same state of the folder goes on with it, and its tasks leave
    complete parts as they are.

    A folder's mode and time are in each part that has something of it. Hard links within a part stay links; a file
    whose names lie in several parts is in each of them. Otherwise as ``pack_folder``.

    Args:
        source: the folder. All machines must see it, and the target, under the same absolute paths.
        target: the folder that is made, outside of ``source``; it must be missing or empty.
        parts: how many files it has, at most 4096. There are fewer if there are fewer names.
        align: as for ``pack_folder``.
        restart: remove the parts of an unfinished plan.

    Returns:
        The plan. ``plan.tasks`` have ``run()``; ``plan.commit(results)`` makes the target appear.

    Raises:
        UsageError: the target exists or lies inside the folder, or an unfinished plan for it is another one.
        SourceNotFoundError, ReadError, SourceChangedError: as ``pack_folder``.
        WriteError: nothing can be written beside the target, or another process is writing its parts.

    """
    folder, there = check_places(source, target, parts)
    with PlanFolder(there).only_driver():
        return make_plan_folder(folder, there, parts, align, restart)


def remove_plan(target: PathLike) -> None:
    """Remove the plan for a target and all that was written, whatever state it is in.

    Raises:
        SourceNotFoundError: there is none. UsageError: it may be another user's.
        WriteError: it cannot be removed, or another process is writing the parts.

    """
    folder = PlanFolder(absolute_path(named(target, "the target")))
    with folder.only_driver():
        folder.refuse_strange()
        folder.remove()


def check_places(source: PathLike, target: PathLike, parts: int) -> tuple[str, str]:
    """Return both as absolute paths. Raises UsageError, WriteError if nothing can be packed from one to the other."""
    folder, there = named(source, "the folder"), named(target, "the target")
    if is_url(folder) or is_url(there):
        raise UsageError(f"{folder if is_url(folder) else there}: only local folders can be packed into parts")
    if not 1 <= parts <= PARTS_MAX:
        raise UsageError(f"{there}: the number of parts must be from 1 to {PARTS_MAX}, not {parts}")
    if len(os.fsencode(_part_name(there, 0, parts))) > NAME_MAX:
        raise UsageError(f"{there}: this name is too long for the names of parts; choose a shorter one")
    refuse_content(there)
    refuse_folder(without_dots(os.fsencode(there)), there)
    folder, there = absolute_path(folder), os.fsdecode(without_dots(os.fsencode(absolute_path(there))))
    real, place = os.path.realpath(folder), os.path.realpath(os.path.dirname(there))
    if place == real or place.startswith(real.rstrip("/") + "/"):
        raise UsageError(f"{there}: lies inside the folder that is packed; name a target outside of it")
    return folder, there


def make_plan_folder(source: str, target: str, parts: int, align: bool, restart: bool) -> PackPlan:
    """As ``plan_pack``, for absolute paths that were checked, and a process that holds the lock of the target."""
    with open_source(os.fsencode(source)) as opened:
        places = survey(opened, parts)
    plan = _plan(source, target, align, [_cut(places, k) for k in range(len(places) - 1)])
    request = json.dumps(["pack", source, target, parts, align])
    PlanFolder(target).create(plan.to_json(), request, plan.fingerprint, restart)
    return plan


# ---------------------------------------------------------------- tasks

_Cut = dict[str, Any]  # the fields of a PackTask that the division determines


def _cut(places: list[CutPlace], k: int) -> _Cut:
    begin, end = places[k], places[k + 1]
    return {
        "start": begin.path,
        "stop": end.path,
        "names": end.names - begin.names,
        "total_bytes": end.size - begin.size,
        "digest": (end.digest - begin.digest) % 2**64,
    }


def _plan(source: str, target: str, align: bool, cuts: list[_Cut]) -> PackPlan:
    names = [_part_name(target, k, len(cuts)) for k in range(len(cuts))]
    marks = [_hash([FORMAT, "pack", align, name, _texts(cut)]) for name, cut in zip(names, cuts, strict=True)]
    fingerprint = _hash(marks)
    tasks = [
        PackTask(k, target, names[k], fingerprint, marks[k], source, align=align, **cut) for k, cut in enumerate(cuts)
    ]
    return PackPlan(target, fingerprint, tuple(tasks), source, align)


def _part_name(target: str, number: int, total: int) -> str:
    stem = os.path.basename(target.rstrip("/")).removesuffix(SUFFIX).lstrip(".") or "parts"
    return shard_name(stem, number, total, SUFFIX)


def _hash(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode("ascii"), digest_size=16).hexdigest()


def _texts(cut: _Cut) -> _Cut:
    """Return the fields as JSON can hold them: 64 bits as text, because other readers of JSON lose some of a number."""
    start, stop = (cut[name].decode("utf-8", "surrogateescape") for name in ("start", "stop"))
    return {**cut, "start": start, "stop": stop, "digest": f"{cut['digest']:016x}"}


def _fields(task: PackTask) -> _Cut:
    return _texts({name: getattr(task, name) for name in ("start", "stop", "names", "total_bytes", "digest")})


def _unfielded(texts: _Cut) -> _Cut:
    start, stop = (str(texts[name]).encode("utf-8", "surrogateescape") for name in ("start", "stop"))
    names, size = int(texts["names"]), int(texts["total_bytes"])
    return {"start": start, "stop": stop, "names": names, "total_bytes": size, "digest": int(texts["digest"], 16)}
