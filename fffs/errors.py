"""The exceptions of fffs, each with the exit code of commands.

Each is also the built-in exception that Python code usually catches, or code written for ffrecord, which raises
``RuntimeError`` for nearly everything::

    FffsError (Exception)
    ├── UsageError (ValueError)
    ├── SourceNotFoundError (FileNotFoundError)
    ├── AccessError (PermissionError)              a store refuses the credentials, or there are none
    ├── FormatError (RuntimeError, ValueError)     the file is not of the expected format
    │   ├── MetadataError                          checksum or structure of the header or tree is wrong
    │   ├── UnfinishedFileError                    its writer never finished
    │   └── UnsupportedError                       a newer version, or an unknown kind
    ├── RecordError (RuntimeError)                 one record is bad; the others can be read
    │   ├── ChecksumError
    │   └── TruncatedError                         the file ends before the record does
    ├── ReadError (OSError)                        the operating system could not read
    ├── WriteError (OSError)                       the operating system could not write
    ├── SourceChangedError (RuntimeError)          a file changed while it was packed, converted or read
    ├── WriterError (RuntimeError)                 too many records, too few, a closed writer
    ├── ClosedError (RuntimeError, ValueError)
    ├── RecordIndexError (IndexError)              no record of that number
    ├── EntryNotFoundError (FileNotFoundError)     no such path in the packed folder
    ├── MountError (RuntimeError)
    │   └── DeadMountError                         the daemon of a mount is gone
    ├── EngineError (RuntimeError)                 this machine cannot run the engine correctly
    └── WorkerError (RuntimeError)                 a process or machine that ran a task died

Examples:
    >>> with open("train.ffr", "r+b") as file:
    ...     _ = file.seek(48)
    ...     _ = file.write(b"X")
    >>> reader = fffs.FileReader("train.ffr")
    >>> try:
    ...     reader.read([0, 1, 2])
    ... except fffs.errors.ChecksumError as error:
    ...     print(error.record, int(error.exit_code))
    0 5
    >>> bytes(reader.read_one(1))
    b'two'

"""

from __future__ import annotations

import os
from enum import IntEnum
from errno import EACCES, EIO, EMFILE


class Exit(IntEnum):
    """The exit codes of commands, each with its meaning in ``fffs --help``.

    Examples:
        >>> fffs.errors.Exit(5).meaning
        'records are damaged (fffs verify names them)'

    """

    OK = 0, "success"
    UNEXPECTED = 1, "unexpected error (a bug: please report it)"
    USAGE = 2, "wrong usage"
    NO_SOURCE = 3, "the source does not exist"
    FORMAT = 4, "the source has a damaged structure, is unfinished, or is of an unknown format"
    RECORDS = 5, "records are damaged (fffs verify names them)"
    READ = 6, "the operating system could not read"
    WRITE = 7, "the operating system could not write"
    CHANGED = 8, "a file changed while it was packed or read"
    NO_ENTRY = 9, "the source has no such record or path"
    MOUNT = 10, "mounting or unmounting failed"
    ENGINE = 11, "this machine cannot run the engine correctly"
    WORKER = 12, "a worker process or machine died, again and again"
    INTERRUPTED = 130, "interrupted (143: ended by SIGTERM; 129: ended by SIGHUP)"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """Create a member, which is an int with a meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


class FffsError(Exception):
    """Base class of all exceptions of fffs. ``str()`` is one line that says what to do."""

    exit_code = Exit.UNEXPECTED


class UsageError(FffsError, ValueError):
    """An argument, an option, or a combination of them is wrong."""

    exit_code = Exit.USAGE


class SourceNotFoundError(FffsError, FileNotFoundError):
    """The file or folder to read does not exist."""

    exit_code = Exit.NO_SOURCE


class AccessError(FffsError, PermissionError):
    """A store of objects refuses the credentials, or there are none."""

    exit_code = Exit.READ

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = EACCES


class FormatError(FffsError, RuntimeError, ValueError):
    """The file is not of the expected format."""

    exit_code = Exit.FORMAT


class MetadataError(FormatError):
    """The header, index or tree of a file is damaged or contradicts itself."""


class UnfinishedFileError(FormatError):
    """The writer of this file was stopped before it wrote the header."""


class UnsupportedError(FormatError):
    """This release does not support the version or kind of the file."""


class RecordError(FffsError, RuntimeError):
    """One record cannot be read; the others can.

    ``path`` is the file, ``record`` the number in that file, ``number`` the number in the store that read it.
    """

    exit_code = Exit.RECORDS

    def __init__(self, message: str, *, path: str = "", record: int = -1, number: int = -1) -> None:
        super().__init__(message)
        self.path = path
        self.record = record
        self.number = number


class ChecksumError(RecordError):
    """The bytes of a record do not match its checksum: ``expected`` is the stored one, ``actual`` that of the bytes."""

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        record: int = -1,
        number: int = -1,
        expected: int = 0,
        actual: int = 0,
    ) -> None:
        super().__init__(message, path=path, record=record, number=number)
        self.expected = expected
        self.actual = actual


class TruncatedError(RecordError):
    """The file ends before the record does."""


class _SystemError(FffsError, OSError):
    """A failed system call: ``errno``, ``strerror`` and ``filename`` are set as in any ``OSError``."""

    verb = "access"

    def __init__(self, errno: int | None, filename: str, detail: str = "") -> None:
        errno = errno or EIO  # Python's own OSErrors may have no errno, and 0 would mean success
        super().__init__(errno, os.strerror(errno), filename)
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        # OSError would pickle (errno, strerror, filename), which are not this constructor's arguments.
        return type(self), (self.errno, self.filename, self.detail)

    def __str__(self) -> str:
        what = f" ({self.detail})" if self.detail else ""
        hint = "; allow this process more of them (ulimit -n)" if self.errno == EMFILE and not self.detail else ""
        return f"{self.filename}: cannot {self.verb}{what}: {self.strerror}{hint}"


class ReadError(_SystemError):
    """The operating system could not read."""

    exit_code = Exit.READ
    verb = "read"


class WriteError(_SystemError):
    """The operating system could not write. The target is unchanged, unless ``detail`` says that it is in place."""

    exit_code = Exit.WRITE
    verb = "write"


class SourceChangedError(FffsError, RuntimeError):
    """A file changed while it was packed, converted, read or scanned, or under a mount."""

    exit_code = Exit.CHANGED


class WriterError(FffsError, RuntimeError):
    """A writer got too many records or too few, or was used after it was closed."""

    exit_code = Exit.USAGE


class ClosedError(FffsError, RuntimeError, ValueError):
    """The reader has been closed."""


class RecordIndexError(FffsError, IndexError):
    """There is no record of that number."""

    exit_code = Exit.NO_ENTRY


class EntryNotFoundError(FffsError, FileNotFoundError):
    """There is no such path in the packed folder."""

    exit_code = Exit.NO_ENTRY


class MountError(FffsError, RuntimeError):
    """Mounting or unmounting failed."""

    exit_code = Exit.MOUNT


class DeadMountError(MountError):
    """The daemon of a mount is gone, but the mount still exists."""


class EngineError(FffsError, RuntimeError):
    """This machine cannot run the engine, or computes wrong checksums."""

    exit_code = Exit.ENGINE


class WorkerError(FffsError, RuntimeError):
    """A process or machine that ran a task died, or the executor failed, as often as it is tried."""

    exit_code = Exit.WORKER
