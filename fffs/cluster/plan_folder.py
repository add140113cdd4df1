"""PlanFolder: the folder beside a local target in which its parts are written, until all of them are there.

``.NAME.fffs-plan`` has the plan, the parts that are complete or being written, and a file with the result of each.

Other users who may write to the folder of the target can give another folder this name at any moment, also one that
belongs to us. So every step opens the folder without following a link, and uses only what it finds through that
descriptor: writing needs the state of the plan in it, and removing a file that proves that fffs made the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from fffs.base.descriptors import above_standard
from fffs.base.failures import reading, writing
from fffs.base.part_sets import UNFINISHED
from fffs.cluster.link_parts import link_parts
from fffs.cluster.plan_place import INPUTS, RESULTS, STATE, OpenPlace, PlanPlace
from fffs.errors import SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import AtomicFile
from fffs.files.atomic_folder import refuse_content
from fffs.files.dirfd import FOLDER, close, open_folder, remove_content, reopened
from fffs.files.pair import only_writer
from fffs.files.rights import is_private, set_mode
from fffs.files.targets import refuse_folder

_MARK: Final = "made-by-fffs"  # made first and removed last: without it, the folder is not removed
_PARTS: Final = "parts"
_NAME_MAX: Final = 200  # bytes of a target's name in that of its folder
_PART_MAX: Final = 200  # bytes of a part's name behind its mark, which alone tells it from others
PATIENCE: Final = 0.5  # seconds; a killed owner of the lock may have left a file that is only removed at first
_ATTEMPTS: Final = 3  # to remove a folder that a late task still writes to

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _OpenToOthersError(UsageError):
    """Other users can write to the folder of a plan."""


class PlanFolder(PlanPlace):
    """The folder of the plan for one target."""

    def __init__(self, target: str) -> None:
        """target: the folder that is made, by an absolute path."""
        self.target = target.rstrip("/") or target
        parent, name = os.path.split(os.fsencode(self.target))
        if len(name) > _NAME_MAX:  # others may begin in the same way
            name = name[: _NAME_MAX - 17] + b"-" + hashlib.blake2b(name, digest_size=8).hexdigest().encode()
        self.path = os.fsdecode(os.path.join(parent, b".%b%b" % (name, UNFINISHED.encode())))

    @contextlib.contextmanager
    def only_driver(self) -> Iterator[None]:
        """See ``PlanPlace``."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(only_writer(self.target, patience=PATIENCE))
            except WriteError as error:
                if error.errno != errno.EAGAIN:
                    raise
                raise WriteError(error.errno, self.target, "another process is writing its parts") from None
            yield

    def refuse_content(self) -> None:
        """See ``PlanPlace``."""
        refuse_content(self.target)
        refuse_folder(os.fsencode(self.target), self.target)

    def is_in_place(self) -> bool:
        """See ``PlanPlace``. The target appears complete, where there was none or an empty folder."""
        with contextlib.suppress(OSError):
            return bool(os.listdir(self.target))
        return False

    def part(self, name: str, mark: str = "") -> str:
        """See ``PlanPlace``."""
        if mark:
            name = f"{mark}-{os.fsdecode(os.fsencode(name)[-_PART_MAX:])}"
        return os.path.join(self.path, _PARTS, name)

    @contextlib.contextmanager
    def _opened(self, force: bool = False) -> Iterator[_OpenFolder]:
        """force: as for ``open_folder``."""
        with reading(self.path):
            try:
                fd = open_folder(os.fsencode(self.path), None, force)
            except FileNotFoundError:
                raise SourceNotFoundError(f"{self.target}: there is no plan for it (no {self.path})") from None
            except NotADirectoryError:
                raise UsageError(f"{self.path}: is not a folder; remove it, or choose another target") from None
        try:
            with reading(self.path):
                if not is_private(fd):
                    raise _OpenToOthersError(
                        f"{self.path}: other users can write to it; remove it, or choose another target"
                    )
            yield _OpenFolder(fd, self)
        finally:
            close(fd)

    @contextlib.contextmanager
    def _made(self) -> Iterator[_OpenFolder]:
        with writing(self.path):
            is_new = not os.path.lexists(self.path)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
        try:
            with self._opened(force=is_new) as folder:  # the umask may remove the owner's permissions
                yield folder
        except UsageError as error:
            if not is_new:
                raise
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            if not isinstance(error, _OpenToOthersError):
                raise
            raise UsageError(
                f"{self.target}: its file system lets other users write to every folder; mount it so that modes or a "
                "umask keep them out, or choose another target"
            ) from None

    def remove(self) -> bool:
        """See ``PlanPlace``."""
        found = False
        for last in range(_ATTEMPTS)[::-1]:
            try:
                with self._opened() as folder:
                    folder.empty()
            except SourceNotFoundError:
                return found
            found = True
            with writing(self.path):
                try:
                    os.rmdir(self.path)
                except OSError:
                    if not last:
                        raise
        return found


class _OpenFolder(OpenPlace):
    """The folder, by a descriptor, which the caller closes."""

    def __init__(self, fd: int, folder: PlanFolder) -> None:
        self._fd, self._folder, self._path = fd, folder, folder.path

    def make(self) -> None:
        """See ``OpenPlace``."""
        with writing(self._path):
            os.close(os.open(_MARK, _NEW, 0o600, dir_fd=self._fd))
            for name in (_PARTS, RESULTS, INPUTS):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=self._fd)
                    close(open_folder(name.encode(), self._fd, force=True))

    def empty(self) -> None:
        """See ``OpenPlace``."""
        with writing(self._path):
            names = self._names()
            if names and _MARK not in names:
                raise UsageError(
                    f"{self._path}: not made by fffs, or not to the end (it has {min(names)}); examine and remove it, "
                    "or choose another target"
                )
            with contextlib.suppress(FileNotFoundError):
                os.unlink(STATE, dir_fd=self._fd)
            remove_content(self._fd, kept=_MARK.encode())
            if self._names() == [_MARK]:
                os.unlink(_MARK, dir_fd=self._fd)

    def _names(self) -> list[str]:
        with reopened(self._fd) as fd:
            return os.listdir(fd)

    def read(self, name: str) -> bytes | None:
        """See ``OpenPlace``."""
        with reading(self._path):
            try:
                opened = os.open(name, _OLD, dir_fd=self._fd)
            except (FileNotFoundError, NotADirectoryError):
                return None
            with open(above_standard(opened), "rb") as file:
                return file.read()

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See ``OpenPlace``."""
        folder, path = os.path.dirname(name), os.path.join(self._path, name)
        with self._inner(folder or ".") as place, AtomicFile(path, place=place) as file:
            file.let_owner_read()
            with writing(path), io.BufferedWriter(file.raw()) as stream:
                stream.writelines(pieces)
            file.commit()

    def put_result(self, name: str, data: bytes) -> None:
        """See ``OpenPlace``."""
        new = f"{name}.{secrets.token_hex(6)}"
        with writing(os.path.join(self._path, name)):
            try:  # not synced
                opened = above_standard(os.open(new, _NEW | os.O_EXCL, 0o600, dir_fd=self._fd))
                with open(opened, "wb") as file:
                    set_mode(file.fileno(), 0o600)  # whatever the umask is
                    file.write(data)
                os.replace(new, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new, dir_fd=self._fd)
                raise

    def has_results(self) -> bool:
        """See ``OpenPlace``."""
        with self._inner(RESULTS) as results:
            return bool(os.listdir(results))

    def sizes(self) -> dict[str, int]:
        """See ``OpenPlace``."""
        sizes: dict[str, int] = {}
        with self._inner(_PARTS) as parts, os.scandir(parts) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # the temporary file of a late task
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes

    def keep_parts(self, names: Collection[str]) -> None:
        """See ``OpenPlace``. A late task of an older plan may leave one all the same."""
        with self._inner(_PARTS) as parts, writing(self._path):
            for name in os.listdir(parts):
                if name not in names and not name.startswith("."):
                    os.unlink(name, dir_fd=parts)

    def new_part(self, name: str, mark: str, fingerprint: str) -> AtomicFile:
        """See ``OpenPlace``."""
        with self._inner(_PARTS) as parts:
            return AtomicFile(self._folder.part(name, mark), place=parts)

    @contextlib.contextmanager
    def _inner(self, name: str) -> Iterator[int]:
        """Yield a descriptor of a folder in it. Raises ReadError."""
        with reading(os.path.join(self._path, name)):
            fd = above_standard(os.open(name, FOLDER, dir_fd=self._fd))
        try:
            with reading(os.path.join(self._path, name)):
                yield fd
        finally:
            close(fd)

    def put_in_place(self, names: list[tuple[str, str]], manifest: str, fingerprint: str) -> None:
        """See ``OpenPlace``. A folder appears at once, so that no manifest is needed."""
        link_parts(self._folder.target, self._fd, [(os.path.join(_PARTS, name), final) for name, final in names])
