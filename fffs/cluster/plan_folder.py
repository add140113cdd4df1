"""PlanFolder: the folder beside a target in which its parts are written, until all of them are there.

``.NAME.fffs-plan`` has the plan, the parts that are complete or being written, and a file with the result of each. A
driver that is killed leaves it to the next one with the same plan.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from typing import Final

from fffs.base.failures import reading, writing
from fffs.errors import SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import AtomicFile
from fffs.files.atomic_folder import AtomicFolder
from fffs.files.dirfd import FOLDER, NO_LINKS, close, remove_content
from fffs.files.pair import only_writer
from fffs.files.pwrite import write_at
from fffs.files.rights import is_trusted

SUFFIX: Final = ".fffs-plan"
_STATE: Final = "state"  # written last and removed first: without it, there is no plan
_PLAN: Final = "plan.json"
_RESULTS: Final = "results"
PATIENCE: Final = 0.5  # seconds; a killed owner of the lock may have left a file that is only removed at first
_ATTEMPTS: Final = 3  # to remove a folder that a late task still writes to


class PlanFolder:
    """The folder of the plan for one target. Has no state: every process has objects of its own."""

    def __init__(self, target: str) -> None:
        """target: the folder that is made, by an absolute path."""
        self.target = target.rstrip("/") or target
        parent, name = os.path.split(os.fsencode(self.target))
        self.path = os.fsdecode(os.path.join(parent, b".%b%b" % (name[:200], SUFFIX.encode())))
        self._parts, self._results = os.path.join(self.path, "parts"), os.path.join(self.path, _RESULTS)

    @contextlib.contextmanager
    def only_driver(self) -> Iterator[None]:
        """Hold the lock of the target, which ends with this process.

        Raises:
            WriteError: another process holds it.

        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(only_writer(self.target, patience=PATIENCE))
            except WriteError as error:
                if error.errno != errno.EAGAIN:
                    raise
                raise WriteError(error.errno, self.target, "another process is writing its parts") from None
            yield

    # ------------------------------------------------------------ the plan

    def create(self, plan: str, request: str, fingerprint: str, restart: bool) -> None:
        """Create the folder for a plan, or go on with it if one for the same request is there.

        Complete parts stay. They are recognised by the marks in their results, so those of another plan are of no use
        unless what they were made from is unchanged.

        Args:
            plan: as text.
            request: a line that says what was asked for.
            fingerprint: of the plan, a line.
            restart: remove what there is.

        Raises:
            UsageError: it has parts for another request, or belongs to another user. WriteError: it cannot be created.

        """
        if os.path.lexists(self.path):
            self.refuse_strange()
            there = self._state()
            if there == (request, fingerprint) and not restart:
                return
            if there and there[0] != request and not restart and self._has_results():
                raise UsageError(
                    f"{self.target}: {self.path} has parts for another source, another number of parts or other "
                    "options; finish that, or remove them with --restart"
                )
            if there is None or there[0] != request or restart:
                self.remove()
        with writing(self.path):
            for folder in (self.path, self._parts, self._results):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
        self._put(_PLAN, plan)
        self._put(_STATE, f"{request}\n{fingerprint}")

    def _has_results(self) -> bool:
        with reading(self.path):
            return bool(os.listdir(self._results))

    def plan(self) -> str:
        """Return the plan as text. Raises SourceNotFoundError, UsageError, ReadError."""
        text = self._read(_PLAN)
        if text is None or self._state() is None:
            raise SourceNotFoundError(f"{self.target}: there is no plan for it (no {self.path}); make one first")
        self.refuse_strange()
        return text

    def fingerprint(self) -> str | None:
        """Return the fingerprint of the plan, or None if there is none. Raises ReadError."""
        state = self._state()
        return state[1] if state else None

    def _state(self) -> tuple[str, str] | None:
        """Return the request and the fingerprint. Raises ReadError."""
        text = self._read(_STATE)
        if text is None:
            return None
        request, _, fingerprint = text.partition("\n")
        return request, fingerprint

    def _read(self, name: str) -> str | None:
        with reading(self.path):
            try:
                with open(os.path.join(self.path, name), encoding="ascii", errors="replace") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def check(self, fingerprint: str) -> None:
        """Raise UsageError unless this is the plan: it may have been committed or aborted, or replaced by another."""
        if self.fingerprint() != fingerprint:
            raise UsageError(f"{self.target}: this plan is not there any more; it was committed, aborted or restarted")
        self.refuse_strange()

    def refuse_strange(self) -> None:
        """Raise UsageError if another user may have written to the folder, SourceNotFoundError if there is none."""
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

    # ------------------------------------------------------------ the parts

    def part(self, name: str) -> str:
        """Return the path of a part until all of them are there."""
        return os.path.join(self._parts, name)

    def keep(self, number: int, result: str) -> None:
        """Keep the result of a part, as text. Raises WriteError."""
        path = os.path.join(self.path, _result(number))
        new = f"{path}.{secrets.token_hex(6)}"
        with writing(path):  # not synced: if it is lost, the task runs again
            try:
                with open(new, "x", encoding="ascii") as file:
                    file.write(result)
                os.replace(new, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new)
                raise

    def kept(self, number: int) -> str | None:
        """Return what ``keep`` was given, or None. Raises ReadError."""
        return self._read(_result(number))

    def _put(self, name: str, text: str) -> None:
        with AtomicFile(os.path.join(self.path, name)) as file:
            write_at(file, [memoryview(text.encode("ascii"))], 0)
            file.commit()

    # ------------------------------------------------------------ the end

    def put_in_place(self, names: Iterable[str]) -> None:
        """Let the target appear with these parts, all at once, and remove this folder.

        Until then, the parts keep their names here: whoever is killed meanwhile, the next one can do it again.

        Raises:
            UsageError, WriteError: as ``AtomicFolder``.

        """
        with AtomicFolder(self.target, self.target) as folder:
            with writing(self.target):
                for name in names:
                    _link(self.part(name), name, folder.fd)
            folder.commit()
        with contextlib.suppress(WriteError):  # a late attempt at a task still writes there; the next plan removes it
            self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it. Raises WriteError."""
        with writing(self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, _STATE))
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


def _result(number: int) -> str:
    return os.path.join(_RESULTS, f"{number:05}")


def _link(path: str, name: str, folder: int) -> None:
    """Give a file another name in an open folder; where there are no hard links, instead of its own. Raises OSError."""
    try:
        os.link(path, name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.rename(path, name, dst_dir_fd=folder)
