"""Puts a new pack in place, also under fs-verity."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fffs.base.descriptors import duplicate
from fffs.base.jobs import Progress
from fffs.base.withblock import closed_on_error
from fffs.errors import RecordError, UsageError
from fffs.files.atomic import AtomicFile, forget_sidecar
from fffs.files.atomic_output import AtomicOutput
from fffs.files.dirfd import close
from fffs.files.pair import only_writer
from fffs.files.pwrite import NewFile, write_at
from fffs.files.sidecar_names import DIGEST
from fffs.files.verity import enable, refuse_without_verity
from fffs.formats import ffrecord
from fffs.layouts import packed
from fffs.layouts.view import TreeView
from fffs.objects.names import is_url
from fffs.packing.verify import verify
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore


def refuse_verity(target: str) -> None:
    """Raise UsageError if a new pack could not be put under fs-verity, which saves the work for it."""
    if is_url(target):
        raise UsageError(f"{target}: fs-verity is for local files; omit --verity")
    refuse_without_verity(target)


@contextlib.contextmanager
def reread(file: AtomicOutput) -> Iterator[TreeView]:
    """Open a packed folder that was just written, before it is renamed, from the disk. Raises as ``load_source``."""
    written = file.reread()
    with closed_on_error((written,)):
        loaded = packed.load(SourceFile(written, ffrecord.load_index(written)))
    with TreeView(loaded.tree, RecordStore([loaded.file]), layout="packed") as source:
        yield source


def commit(file: AtomicOutput, verity: bool, progress: Progress | None = None) -> None:
    """Put a complete packed folder in place; with ``verity``, under fs-verity and with its digest beside it.

    The digest follows the pack: a process that is killed between the two leaves a pack whose digest is not kept, and
    never a digest of another file.

    Raises:
        UsageError: the file system has no fs-verity.
        RecordError, FormatError, ReadError: what was written is not what is on the disk.
        WriteError: an existing file is unchanged; or only the digest, which the error names, could not be written.

    """
    if not verity:
        file.commit()
        return
    assert isinstance(file, AtomicFile)  # see refuse_verity
    digest = _protect(file, progress)
    with AtomicFile(file.path + DIGEST) as kept:
        kept.belongs_to(file)
        write_at(NewFile(kept.fd, kept.path), [f"{digest}\n".encode()], 0)
        kept.sync()
        _commit_both(file, kept)


def _commit_both(file: AtomicFile, kept: AtomicFile) -> None:
    """Put a pack and its digest in place. Other writers of the pack, which hold no lock, remove the digest when theirs
    has its name; if that was before the digest had one, it is removed here.
    """
    folder, ours = duplicate(file.folder), os.fstat(file.fd)
    try:
        with only_writer(file.path, folder):
            file.commit()
            kept.commit()
            if not _is_in_place(file.name, folder, ours):
                forget_sidecar(file.name, DIGEST, folder)
    finally:
        close(folder)


def _is_in_place(name: bytes, folder: int, ours: os.stat_result) -> bool:
    """Whether a file has its name. A later one may have got the inode number."""
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(now, ours) and now.st_mtime_ns == ours.st_mtime_ns


def _protect(file: AtomicFile, progress: Progress | None) -> str:
    """Put a new pack under fs-verity, and then compare it with its checksums. Returns the digest.

    Without that, damage between writing and the computation of the hashes would be protected, too.
    """
    file.end_writing()
    digest = enable(file.fd, file.path)
    with reread(file) as source:
        bad = verify(source, progress)
    if bad:
        raise RecordError(
            f"{file.path}: record {bad[0].record}: {bad[0].problem}: it was damaged during writing; write it again",
            path=file.path,
            record=bad[0].record,
            number=bad[0].number,
        )
    return digest
