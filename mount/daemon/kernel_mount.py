"""A mount that the kernel serves alone: an EROFS image of the names, over the packed files. There is no daemon."""

from __future__ import annotations

import logging
import os
import select
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO

from fffs.base.descriptors import describe, duplicate
from fffs.base.jobs import Progress
from fffs.base.text import plural
from fffs.errors import SourceChangedError
from fffs.files.file import File
from fffs.files.sidecar_names import DIGEST, real_path
from fffs.files.verity import Verity, look
from fffs.layouts import load_source
from fffs.layouts.view import TreeView
from fffs.mount.daemon.job import Job
from fffs.mount.fs.image import write_image
from fffs.mount.options import MountOptions
from fffs.mount.system import erofs, kernel
from fffs.mount.system.erofs import CannotError
from fffs.mount.system.mountpoint import MountPoint
from fffs.mount.system.mounts import MountIdentity
from fffs.objects.names import is_url
from fffs.packing.verify import verify

_log = logging.getLogger("fffs.mount")

# Where the image is kept while it is mounted, unless TMPDIR names another folder. /tmp is often a tmpfs, in which the
# kernel needs a loop device for it.
FOLDER = "/var/tmp"
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Options that change what is shown, which only a daemon can do; and options about a daemon, which have no effect.
UNKNOWN = ("suffix", "decode", "xattr")
WITHOUT_EFFECT = ("fastpath", "threads", "readahead", "readdirplus", "log")


def mount_without_daemon(job: Job, progress: Progress | None = None) -> bool:
    """Mount, if the options want the kernel to do it alone. Returns False if a daemon shall do it.

    progress: called with (bytes verified, total bytes).

    Raises:
        MountError, UsageError: mounting failed, and nothing is mounted.
        FormatError, ReadError: as ``load_source``.

    """
    mounted = _mount_if_possible(job, progress)
    if mounted is None:
        return False
    mounted[0].close()  # a folder that was created stays
    return True


def hold(job: Job, ready: Callable[[], None], lifelines: Sequence[int]) -> bool:
    """As ``mount_without_daemon``, and keep this process as the one that unmounts: when it is signalled, or when one of
    the lifelines becomes readable or is closed at the other end. For the main thread.
    """
    signalled, its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def receive_signals() -> None:  # until the mount appears, they end this process, and nothing is left
        signal.set_wakeup_fd(its)
        for number in ENDS:
            signal.signal(number, lambda *_: None)

    mounted = _mount_if_possible(job, None, receive_signals)
    if mounted is None:
        return False
    point, identity = mounted
    poll = select.poll()
    for fd in (signalled, *lifelines):
        poll.register(fd, select.POLLIN)
    try:
        ready()
        poll.poll()
    finally:
        try:
            _detach(identity)
        finally:
            point.remove()
        for number in ENDS:  # an interpreter that exits restores the default
            signal.signal(number, signal.SIG_IGN)
    return True


def _detach(identity: MountIdentity) -> None:
    """Unmount a mount, lazily if it is in use. Others may have mounted over it, moved it or unmounted it."""
    mount = identity.find()
    if mount is None:
        return
    try:
        kernel.detach(mount)
    except kernel.BusyError:
        kernel.detach(mount, lazy=True)


def _mount_if_possible(
    job: Job, progress: Progress | None, commit: Callable[[], object] | None = None
) -> tuple[MountPoint, MountIdentity] | None:
    """Mount. Returns the mount point and which mount it is; None if a daemon shall serve it."""
    if job.options.kernel is False:
        return None
    try:
        return _mount(job, progress, commit)
    except CannotError as error:
        if job.options.kernel:
            raise
        _log.warning("%s; so a daemon serves the mount", error.reason)
        return None


def _mount(
    job: Job, progress: Progress | None, commit: Callable[[], object] | None
) -> tuple[MountPoint, MountIdentity]:
    options = job.options
    _refuse_options(options)
    if any(map(is_url, job.sources)):
        raise CannotError("-o kernel: the kernel cannot read objects in stores; omit it")
    with load_source(job.sources, format=options.format, prefix=options.prefix) as source:
        for line in source.warnings:
            _log.warning("%s", line)
        _refuse_source(source)
        digests = [_digest(file.file) for file in source.store.files]
        point = MountPoint(job.mountpoint, options.nonempty)

        @contextmanager
        def about_to_mount() -> Iterator[int]:
            with point.examined() as folder:  # verifying took its time
                (commit or point.leave)()
                yield folder

        try:
            identity = _attach(job, source, options.verify and not _are_known(digests), progress, about_to_mount)
        except BaseException:
            point.remove()
            raise
    _log.warning("%s: mounted without a daemon: %s", job.name, _describe(digests, options))
    return point, identity


def _attach(
    job: Job,
    source: TreeView,
    verified: bool,
    progress: Progress | None,
    commit: Callable[[], AbstractContextManager[int]],
) -> MountIdentity:
    """Mount a source, after it was verified if that is wanted. Returns which mount it is."""
    files = [file.file for file in source.store.files]
    stamps = [file.stamp() for file in files]
    if verified:
        _verify(source, progress)
    with _unnamed_file() as image:
        write_image(image.fileno(), source, job.options)
        if any(file.changed(stamp) for file, stamp in zip(files, stamps, strict=True)):
            raise SourceChangedError(f"{job.name}: changed while it was mounted; mount it when it is complete")
        devices = [file.descriptor for file in files]
        return erofs.attach(image.fileno(), devices, job.mountpoint, job.name, job.options.noexec, commit)


def _digest(file: File) -> Verity:
    """Return the digest of a file under fs-verity. Raises CannotError if the one that is kept belongs to another."""
    digest, kept = look(file), real_path(file.name) + DIGEST
    if digest.problem:
        raise CannotError(digest.problem)
    if digest.kept in (None, digest.measured):
        return digest
    if digest.measured is None:
        advice = f"run fsverity enable {file.name}, or remove {kept}" if digest.possible else f"remove {kept}"
        why = "as after copying it" if digest.possible else "which its file system or this kernel does not have"
        raise CannotError(f"{file.name}: not under fs-verity, {why}, but {kept} has a digest", advice)
    raise CannotError(
        f"{file.name}: its digest {digest.measured} is not the one in {kept}, so it is another file",
        f"restore it, or remove {kept} if it is right",
    )


def _are_known(digests: Sequence[Verity]) -> bool:
    """Whether all files have the digests that were kept when they had been verified."""
    return all(digest.kept is not None for digest in digests)


def _describe(digests: Sequence[Verity], options: MountOptions) -> str:
    """Return what a mount has and what it gives up."""
    before = "records were verified" if options.verify else "no record was verified"
    if _are_known(digests):
        before = "the digest is the one that is kept"
    protected = all(digest.measured is not None for digest in digests)
    now = "fs-verity verifies what is read from the disk" if protected else "nothing is verified while it is read"
    idle = ", ".join(f"{name}=" for name in WITHOUT_EFFECT if _is_given(options, name))
    return f"{before}, and {now}; there are no counters and no log{f'; without effect: {idle}' if idle else ''}"


def _unnamed_file() -> IO[bytes]:
    folder = os.environ.get("TMPDIR") or FOLDER
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fdopen(duplicate(file.fileno()), "w+b")
    except OSError as error:
        why = f"{folder}: no room for the image: {describe(error)}"
        raise CannotError(why, "set TMPDIR to another folder") from None


def _is_given(options: MountOptions, name: str) -> bool:
    return bool(getattr(options, name) != getattr(MountOptions(), name))


def _refuse_options(options: MountOptions) -> None:
    for name in UNKNOWN:
        if _is_given(options, name):
            raise CannotError(f"-o kernel: the kernel does not know the option {name}", "omit one of the two")
    if os.geteuid() != 0:
        raise CannotError("-o kernel: only root can let the kernel mount a pack", "omit it, or use kernel=auto")


def _refuse_source(source: TreeView) -> None:
    if source.layout not in ("packed", "union"):
        raise CannotError(
            f"{source.store.files[0].index.path}: not a pack, and -o kernel mounts nothing else", "omit it"
        )
    for file in source.store.files:
        if file.file.descriptor < 0:
            raise CannotError(f"{file.index.path}: is not a file of this machine, which -o kernel needs", "omit it")
        if not file.index.alignment:
            path = file.index.path
            raise CannotError(
                f"{path}: its files are not aligned, which -o kernel needs",
                f"make a pack whose files are: fffs convert --align {path} NEW.ffr, or fffs pack --align",
            )


def _verify(source: TreeView, progress: Progress | None) -> None:
    bad = verify(source, progress)
    if bad:
        what = bad[0].name or f"record {bad[0].record}"
        more = f", and {plural(len(bad) - 1, 'other record')}" if len(bad) > 1 else ""
        raise CannotError(
            f"{bad[0].source}: {what}: {bad[0].problem}{more}, which the kernel would not notice",
            "copy the file again, or mount it without -o kernel",
        )
