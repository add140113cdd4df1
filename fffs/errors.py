"""The exceptions of fffs, each with the exit code the command line gives it.

Every one is also the built-in that a Python user (or code written for ffrecord, which raised ``RuntimeError`` for
nearly everything) would catch::

    FffsError (Exception)                         exit code
    ├── UsageError (ValueError)                    2
    ├── SourceNotFoundError (FileNotFoundError)    3
    ├── FormatError (RuntimeError, ValueError)     4   the file is not what it should be
    │   ├── MetadataError                          4   checksum or structure of the header or tree is wrong
    │   ├── UnfinishedFileError                    4   its writer never finished
    │   └── UnsupportedError                       4   a newer version, or a kind we do not know
    ├── RecordError (RuntimeError)                 5   one record is bad; its neighbours are fine
    │   ├── ChecksumError                          5
    │   └── TruncatedError                         5   the file ends before the record does
    ├── ReadError (OSError)                        6   the operating system could not read
    ├── WriteError (OSError)                       7   the operating system could not write
    ├── SourceChangedError (RuntimeError)          8   a file changed while it was packed, read, ...
    ├── WriterError (RuntimeError)                 2   too many records, too few, a closed writer
    ├── ClosedError (RuntimeError, ValueError)     1
    ├── RecordIndexError (IndexError)              9   no record of that number
    ├── EntryNotFoundError (FileNotFoundError)     9   no such path in the packed folder
    ├── MountError (RuntimeError)                 10
    │   └── DeadMountError                        10   the daemon of a mount is gone
    └── EngineError (RuntimeError)                11   this machine cannot run the engine correctly
"""

from __future__ import annotations

import os
from errno import EIO


class FffsError(Exception):
    """Anything that fffs raises on purpose. ``str()`` is one line that says what to do."""

    exit_code = 1


class UsageError(FffsError, ValueError):
    """The call itself is wrong: an argument, an option, a combination of them."""

    exit_code = 2


class SourceNotFoundError(FffsError, FileNotFoundError):
    """The file or folder to read does not exist."""

    exit_code = 3


class FormatError(FffsError, RuntimeError, ValueError):
    """The file is not of the format it should be."""

    exit_code = 4


class MetadataError(FormatError):
    """The header, index or tree of a file is damaged or contradicts itself."""


class UnfinishedFileError(FormatError):
    """The writer of this file was stopped before it wrote the header."""


class UnsupportedError(FormatError):
    """The file is of a version or kind this release does not know."""


class RecordError(FffsError, RuntimeError):
    """One record cannot be given out; the others can.

    ``path`` is the file, ``record`` the number in that file, ``number`` the number in the store it was read through.
    """

    exit_code = 5

    def __init__(self, message: str, *, path: str = "", record: int = -1, number: int = -1) -> None:
        super().__init__(message)
        self.path = path
        self.record = record
        self.number = number


class ChecksumError(RecordError):
    """A record's bytes do not have its checksum."""

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
        errno = errno or EIO  # Python's own OSErrors may have none, and 0 would read as success
        super().__init__(errno, os.strerror(errno), filename)
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        # OSError would pickle (errno, strerror, filename), which are not this constructor's arguments.
        return type(self), (self.errno, self.filename, self.detail)

    def __str__(self) -> str:
        what = f" ({self.detail})" if self.detail else ""
        return f"{self.filename}: cannot {self.verb}{what}: {self.strerror}"


class ReadError(_SystemError):
    """The operating system could not read."""

    exit_code = 6
    verb = "read"


class WriteError(_SystemError):
    """The operating system could not write. The target is as it was, unless ``detail`` says that it is in place."""

    exit_code = 7
    verb = "write"


class SourceChangedError(FffsError, RuntimeError):
    """A file changed while it was packed, converted, read or scanned, or under a mount."""

    exit_code = 8


class WriterError(FffsError, RuntimeError):
    """A writer was given too many records, too few, or was used after it was closed."""

    exit_code = 2


class ClosedError(FffsError, RuntimeError, ValueError):
    """The reader has been closed."""


class RecordIndexError(FffsError, IndexError):
    """There is no record of that number."""

    exit_code = 9


class EntryNotFoundError(FffsError, FileNotFoundError):
    """There is no such path in the packed folder."""

    exit_code = 9


class MountError(FffsError, RuntimeError):
    """Mounting or unmounting failed."""

    exit_code = 10


class DeadMountError(MountError):
    """The daemon behind a mount point is gone, and the mount point is still there."""


class EngineError(FffsError, RuntimeError):
    """This machine cannot run the engine, or computes wrong checksums."""

    exit_code = 11
