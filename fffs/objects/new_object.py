"""NewObject: an object that appears complete or not at all, written like a file; new_output makes either of them.

The object is written to a file in memory, at any offsets. Each part of it is sent when it is complete, and its memory
freed. So a header that is known last, such as that of FFRecord, may precede the data: parts may be sent in any order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from errno import EEXIST
from typing import Final, TypeVar

from fffs.base.descriptors import above_standard, memory_file
from fffs.base.paths import PathLike
from fffs.base.withblock import Discarding, refuse_child
from fffs.errors import FffsError, ReadError, SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import AtomicFile
from fffs.files.atomic_output import AtomicOutput, RawWriter
from fffs.files.inodes import place
from fffs.files.local import LocalFile
from fffs.files.pages import mapped
from fffs.files.sidecar_names import CHECKSUMS
from fffs.objects.client import ask_upload
from fffs.objects.names import ObjectName, is_url, parse_url, require_object
from fffs.objects.part_sender import PartSender
from fffs.objects.part_sizes import SMALLEST, PartSizes, WrittenRanges
from fffs.objects.protocol import NONE_THERE, Condition, Guard
from fffs.objects.unfinished import abort_left_uploads
from fffs.objects.whole_object import put_new, put_whole, replace_seen

_Result = TypeVar("_Result")
_DAY: Final = 86400.0  # seconds

_outputs: weakref.WeakSet[NewObject] = weakref.WeakSet()


def new_output(path: PathLike) -> AtomicOutput:
    """Return a new file, or a new object for a URL, which ``commit`` puts in place. Raises as both do."""
    name = os.fsdecode(path)
    return NewObject(name) if is_url(name) else AtomicFile(path)


def object_exists(url: str) -> bool:
    """Whether there is an object. Raises UsageError, AccessError, ReadError."""
    return bool(ask_upload(_writable(url), "look")["exists"])


def _writable(url: str) -> ObjectName:
    target = parse_url(url)
    if target.is_web:
        raise UsageError(
            f"{target.name}: cannot write to an address of the web; name an object as s3://, gs:// or az://"
        )
    require_object(target)
    return target


class NewObject(Discarding):
    """A new object. ``commit`` puts it in place; ``discard``, or the end of the with-block, removes what was sent.

    ``fd`` is open for reading and writing, also by several threads; report what is written to ``wrote``. After fork,
    only the process that made the object may write, commit or discard.
    """

    def __init__(self, url: str, guard: Guard | None = None) -> None:
        """guard: of what this object depends on. What is there then is replaced only as it is: a store may take the
        last request late, when others have written something newer.

        Raises UsageError, AccessError, ReadError: the store cannot be written to.
        """
        self._guard = guard
        self._target = _writable(url)
        self.path = self._target.name
        self._owner = os.getpid()
        looked = ask_upload(self._target, "look", beside=[CHECKSUMS])
        for ending in looked["beside"]:
            raise UsageError(f"{self.path}: remove {self.path}{ending} first: it belongs to the object that is there")
        self._place, self._in_parts = str(looked["place"]), bool(looked["parts"])
        if self._in_parts:
            abort_left_uploads(_place_of)
        self.replaces = True
        """Whether ``commit`` replaces an object of that name; otherwise it fails if there is one."""
        self.in_place = False
        self._lock = threading.Lock()
        self._sender: PartSender | None = None
        self._set_sizes(PartSizes())
        self.fd = _memory() if self._in_parts else _file()
        self._open = True
        _outputs.add(self)

    def expect_size(self, total: int) -> None:
        """Set about what the size will be. Call it before anything is written."""
        self._set_sizes(PartSizes(total))

    def _set_sizes(self, sizes: PartSizes) -> None:
        self._sizes, self._written = sizes, WrittenRanges(sizes)

    def raw(self) -> RawWriter:
        """Return a raw file object that writes to ``fd``."""
        return RawWriter(self)

    def wrote(self, offset: int, size: int) -> None:
        """Say that a range will not change any more, and send parts that are complete. Waits while many are sent.

        Raises WriteError, AccessError: a part could not be sent.
        """
        refuse_child(self._owner, self.path)
        if not self._in_parts:
            return
        with self._lock:
            complete = self._written.add(offset, size)
            if complete and self._sender is None:
                self._sender = self._asking(lambda: PartSender(self._target, self._place, self.fd))
        for number in complete:
            assert self._sender is not None
            self._sender.put(number, *self._sizes.range(number))

    def cancel(self) -> None:
        """Let threads that wait in ``wrote`` end; ``discard`` follows."""
        sender = self._sender
        if sender is not None:
            sender.cancel()

    def sync(self) -> None:
        """Do nothing: what the store confirmed is durable."""

    def reread(self) -> LocalFile:
        """Raise UsageError: an object cannot be read before it is in place."""
        raise UsageError(f"{self.path}: cannot be compared before it is in place; use fffs verify afterwards")

    def commit(self) -> None:
        """Put the object in place.

        Raises:
            WriteError: the object is as it was; EEXIST: another one is there (see ``replaces``).
            AccessError: the store refuses access.

        """
        refuse_child(self._owner, self.path)
        try:
            self._asking(self._put_in_place)
            self.in_place = True
        finally:
            self.discard()

    def _put_in_place(self) -> None:
        size = os.fstat(self.fd).st_size
        if not self._in_parts:
            path = f"/proc/{os.getpid()}/fd/{self.fd}"
            self._put(lambda seen: self._spool(path, seen))
        elif self._sender is None and size <= SMALLEST:
            with mapped(self.fd, 0, size) as data:
                if self.replaces:
                    self._put(lambda seen: put_whole(self._target, data, seen, self._guard))
                else:
                    put_new(self._target, data)
        else:
            self._put_rest(size)

    def _put(self, send: Callable[[Condition], bool]) -> None:
        """Let ``send`` put the object in place, on a condition. Raises FileExistsError if there is another one."""
        if self._guard is not None:
            replace_seen(self._target, send)
        else:
            send({} if self.replaces else NONE_THERE)

    def _spool(self, path: str, condition: Condition) -> bool:
        """Let obstore send the file. Returns whether it is done."""
        inode = list(place(os.fstat(self.fd)))
        sent = {"path": path, "inode": inode, "condition": condition, "guard": self._guard}
        return bool(ask_upload(self._target, "spool", _DAY, **sent)["done"])

    def _put_rest(self, size: int) -> None:
        """Send the parts that nothing said to be complete, such as the last one, and make the object of all."""
        sender = self._sender = self._sender or PartSender(self._target, self._place, self.fd)
        for number in range(self._sizes.number(max(size - 1, 0)) + 1):
            if number not in self._written.complete:
                begin, end = self._sizes.range(number)
                sender.put(number, begin, min(end, size))
        parts = sender.finish()
        self._put(lambda seen: sender.complete(parts, seen, not self.replaces, self._guard))
        self._sender = None

    def _asking(self, act: Callable[[], _Result]) -> _Result:
        """Return what act() returns, with errors of writing in place of those of reading."""
        try:
            return act()
        except FileExistsError:
            raise WriteError(EEXIST, self.path, "another process made it meanwhile") from None
        except SourceNotFoundError as error:
            raise WriteError(2, self.path, str(error).partition(": ")[2]) from None
        except ReadError as error:
            raise WriteError(error.errno, self.path, error.detail) from None

    def discard(self) -> None:
        """Remove what was sent. May be called again, and after ``commit``."""
        if not self._open:
            return
        self._open = False
        sender, self._sender = self._sender, None
        try:
            if sender is not None:
                (sender.abort if os.getpid() == self._owner else sender.abandon)()
        finally:
            os.close(self.fd)


def _place_of(target: ObjectName) -> str:
    return str(ask_upload(target, "place")["place"])


def _memory() -> int:
    """Return the descriptor of a file in memory."""
    return memory_file("fffs-upload")


def _file() -> int:
    """Return the descriptor of a file without a name in the folder for temporary files."""
    with tempfile.TemporaryFile() as file:
        return above_standard(os.dup(file.fileno()))


def _discard_all() -> None:
    """At exit: abort uploads while the store process still runs."""
    for output in list(_outputs):
        with contextlib.suppress(FffsError, OSError):
            output.discard()


atexit.register(_discard_all)
