"""PlanFolder: the folder beside a local target in which its parts are written, until all of them are there.

``.NAME.fffs-plan`` has the plan, the parts that are complete or being written, and a file with the result of each.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Iterable, Iterator
from typing import Final

from fffs.base.failures import reading, writing
from fffs.cluster.plan_place import INPUTS, RESULTS, STATE, PlanPlace
from fffs.errors import SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import AtomicFile
from fffs.files.atomic_folder import AtomicFolder, refuse_content
from fffs.files.dirfd import FOLDER, NO_LINKS, close, remove_content
from fffs.files.pair import only_writer
from fffs.files.rights import is_trusted
from fffs.files.targets import refuse_folder
from fffs.formats.part_names import UNFINISHED

PATIENCE: Final = 0.5  # seconds; a killed owner of the lock may have left a file that is only removed at first
_ATTEMPTS: Final = 3  # to remove a folder that a late task still writes to


class PlanFolder(PlanPlace):
    """The folder of the plan for one target."""

    def __init__(self, target: str) -> None:
        """target: the folder that is made, by an absolute path."""
        self.target = target.rstrip("/") or target
        parent, name = os.path.split(os.fsencode(self.target))
        self.path = os.fsdecode(os.path.join(parent, b".%b%b" % (name[:200], UNFINISHED.encode())))
        self._parts = os.path.join(self.path, "parts")

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

    def refuse_strange(self) -> None:
        """See ``PlanPlace``."""
        with reading(self.path):
            try:
                fd = os.open(self.path, FOLDER)
            except FileNotFoundError:
                raise SourceNotFoundError(f"{self.target}: there is no plan for it (no {self.path})") from None
            except NotADirectoryError:
                raise UsageError(f"{self.path}: is not a folder; remove it, or choose another target") from None
            try:
                trusted = is_trusted(fd)
            finally:
                close(fd)
        if not trusted:
            raise UsageError(f"{self.path}: other users can write to it; remove it, or choose another target")

    # ------------------------------------------------------------ files

    def part(self, name: str) -> str:
        """See ``PlanPlace``."""
        return os.path.join(self._parts, name)

    def sizes(self) -> dict[str, int]:
        """See ``PlanPlace``."""
        with reading(self.path), os.scandir(self._parts) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def _is_there(self) -> bool:
        return os.path.lexists(self.path)

    def _make(self) -> None:
        with writing(self.path):
            for folder in (self.path, *(os.path.join(self.path, name) for name in ("parts", RESULTS, INPUTS))):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)

    def _has_results(self) -> bool:
        with reading(self.path):
            return bool(os.listdir(os.path.join(self.path, RESULTS)))

    def _read(self, name: str) -> bytes | None:
        with reading(self.path):
            try:
                with open(os.path.join(self.path, name), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        path = os.path.join(self.path, name)
        with AtomicFile(path) as file:
            with writing(path), io.BufferedWriter(file.raw()) as stream:
                stream.writelines(pieces)
            file.commit()

    def _put_result(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        new = f"{path}.{secrets.token_hex(6)}"
        with writing(path):  # not synced
            try:
                with open(new, "xb") as file:
                    file.write(data)
                os.replace(new, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new)
                raise

    # ------------------------------------------------------------ the end

    def put_in_place(self, names: list[str], manifest: str) -> None:
        """See ``PlanPlace``. A folder appears at once, so that no manifest is needed."""
        with AtomicFolder(self.target, self.target) as folder:
            with writing(self.target):
                for name in names:
                    _link(self.part(name), name, folder.fd)
            folder.commit()
        with contextlib.suppress(WriteError):  # a late attempt at a task still writes there; the next plan removes it
            self.remove()

    def remove(self) -> None:
        """See ``PlanPlace``."""
        with writing(self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, STATE))
            for last in range(_ATTEMPTS)[::-1]:
                try:
                    fd = os.open(self.path, FOLDER)
                except FileNotFoundError:
                    return
                try:
                    remove_content(fd)
                finally:
                    close(fd)
                try:
                    os.rmdir(self.path)
                except OSError:
                    if not last:
                        raise


def _link(path: str, name: str, folder: int) -> None:
    """Give a file another name in an open folder; where there are no hard links, instead of its own. Raises OSError."""
    try:
        os.link(path, name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.rename(path, name, dst_dir_fd=folder)
