"""ObstoreWrites: what obstore writes: objects of Google's and Azure's stores, and of S3 with the keys of a role.

obstore repeats a request for some seconds only, and a repeated one may be refused because the first one succeeded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

from fffs.objects.describing import STATUS, ObjectExistsError
from fffs.objects.lasting import LastingStore
from fffs.objects.protocol import NONE_THERE, Condition
from fffs.objects.sending import AGAIN

_WHOLE: Final = 64 << 20  # bytes that are sent in one request, on a condition
_PART: Final = 8 << 20  # bytes of a part
_AT_ONCE: Final = 8  # parts in memory, which are sent at the same time
_MOST_PARTS: Final = 9000  # of 10,000
_TWICE: Final = 400  # Azure's answer to a list of blocks that it has put already, as after a lost answer
_SMALL: Final = 1 << 20  # bytes that are sent soon, or not at all
_PIECE: Final = 1 << 20

_Result = TypeVar("_Result")


class StoppedError(Exception):
    """The owner of this process ended."""


class ObstoreWrites:
    """Writes to one bucket. Thread-safe. Methods raise what obstore raises, and StoppedError after ``stop``."""

    def __init__(self, store: LastingStore, sending: LastingStore) -> None:
        """sending: for requests with many bytes, which take their time."""
        self._lasting, self._sending = store, sending
        self._has_answered = False  # otherwise its address may be wrong
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._uploads = 0

    @property
    def _store(self) -> Any:
        return self._lasting.get()

    def stop(self, patience: float) -> None:
        """Abort all uploads, and wait for so many seconds until they are, or complete."""
        self._stopped.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._uploads, patience)

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoppedError

    def seen(self, key: str, deadline: float) -> Condition:
        """Return the condition that an object is as it is now: its version in the terms of obstore, or NONE_THERE."""

        def look() -> Condition:
            try:
                found = importlib.import_module("obstore").head(self._store, key)
            except FileNotFoundError:
                return NONE_THERE
            return {name: str(found[name]) for name in ("e_tag", "version") if found[name]}

        return self._repeat(look, deadline)

    def read_end(self, key: str, count: int, deadline: float) -> bytes | None:
        """Return the last bytes of an object, or None if there is none."""

        def read() -> bytes | None:
            obstore = importlib.import_module("obstore")
            try:
                size = int(obstore.head(self._store, key)["size"])  # Azure knows no ranges from the end
                return bytes(obstore.get_range(self._store, key, start=max(size - count, 0), end=size)) if size else b""
            except FileNotFoundError:
                return None

        return self._repeat(read, deadline)

    def delete(self, keys: list[str]) -> None:
        """Delete objects, as far as they are there."""
        with contextlib.suppress(FileNotFoundError):  # only if there is a single one
            importlib.import_module("obstore").delete(self._store, keys)

    def put_file(
        self, key: str, file: BinaryIO, condition: Condition, examine: Callable[[], object], deadline: float
    ) -> None:
        """Store a complete file, which is open: its name may become that of another one.

        condition: what ``seen`` returned and is still to be there, or NONE_THERE, or nothing.
        examine: called before the object may appear, each time, unless it raises.

        Raises ObjectExistsError if the condition does not hold, and what ``examine`` raises.
        """
        errors = importlib.import_module("obstore.exceptions")
        missing = (errors.NotFoundError, FileNotFoundError)  # such as an upload that is complete already
        others = (errors.AlreadyExistsError, errors.PreconditionError, ObjectExistsError)
        try:
            self._repeat(lambda: self._put(key, file, condition, examine), deadline)
        except (*others, *missing, errors.GenericError) as error:
            if isinstance(error, errors.GenericError) and _status(error) != _TWICE:
                raise
            if self._holds(key, file, deadline):  # the answer to an earlier request was lost
                return
            if isinstance(error, others):
                raise ObjectExistsError from None
            raise

    def _put(self, key: str, file: BinaryIO, condition: Condition, examine: Callable[[], object]) -> None:
        obstore, size = importlib.import_module("obstore"), os.fstat(file.fileno()).st_size
        file.seek(0)
        if condition:  # some stores ignore it, and none has it for an object of parts
            self._refuse_other(key, condition)
        # What has no condition is sent in parts if it is larger than one: ``stop`` can end that.
        if size <= (_WHOLE if condition else _PART):
            examine()
            self._put_whole(key, file.read(), condition)
            return

        def look_again() -> None:
            if condition:
                self._refuse_other(key, condition)
            examine()
            self._refuse_stopped()

        def pieces() -> Iterator[bytes]:
            while piece := file.read(_PIECE):
                self._refuse_stopped()
                yield piece
            # obstore asks for pieces in a thread that runs its requests, and refuses others there. An exception aborts
            # the upload.
            with ThreadPoolExecutor(1) as other:
                other.submit(look_again).result()

        part = max(_PART, -(-size // _MOST_PARTS))
        with self._uploading():
            obstore.put(self._sending.get(), key, pieces(), chunk_size=part, max_concurrency=_AT_ONCE)

    @contextlib.contextmanager
    def _uploading(self) -> Iterator[None]:
        """Count an upload for ``stop``."""
        with self._changed:
            self._uploads += 1
        try:
            yield
        finally:
            with self._changed:
                self._uploads -= 1
                self._changed.notify_all()

    def _put_whole(self, key: str, data: bytes, condition: Condition) -> None:
        obstore, errors = importlib.import_module("obstore"), importlib.import_module("obstore.exceptions")
        store = self._store if len(data) <= _SMALL else self._sending.get()
        mode: Any = "create" if condition == NONE_THERE else condition or "overwrite"
        try:
            obstore.put(store, key, data, mode=mode, use_multipart=False)
        except errors.GenericError as error:
            if not condition or _status(error) != 501:
                raise
            self._refuse_other(key, condition)  # the store has no conditions
            obstore.put(store, key, data, use_multipart=False)

    def _refuse_other(self, key: str, condition: Condition) -> None:
        """Raise ObjectExistsError if a condition does not hold."""
        if self.seen(key, 0) != condition:
            raise ObjectExistsError

    def _holds(self, key: str, file: BinaryIO, deadline: float) -> bool:
        """Whether there is an object with the bytes of a file. It is read in ranges that a slow line brings in time."""
        obstore, errors = importlib.import_module("obstore"), importlib.import_module("obstore.exceptions")
        size = os.fstat(file.fileno()).st_size

        def is_equal(start: int) -> bool:
            file.seek(start)
            wanted = file.read(_PART)
            options = {"range": (start, start + len(wanted)), **version}
            return bytes(obstore.get(self._store, key, options=options).bytes()) == wanted

        try:
            found = self._repeat(lambda: obstore.head(self._store, key), deadline)
            version = {"if_match": found["e_tag"]} if found["e_tag"] else {}
            return int(found["size"]) == size and all(
                self._repeat(partial(is_equal, start), deadline) for start in range(0, size, _PART)
            )
        except (FileNotFoundError, errors.PreconditionError):
            return False

    def _repeat(self, act: Callable[[], _Result], deadline: float) -> _Result:
        """Return what act() returns, which is repeated for ``deadline`` seconds of failures that may pass."""
        end, wait = 0.0, 0.5
        while True:
            self._refuse_stopped()
            try:
                result = act()
                self._has_answered = True
                return result
            except importlib.import_module("obstore.exceptions").GenericError as error:
                status, now = _status(error), time.monotonic()
                end = end or now + deadline
                if now >= end or not (status in AGAIN if status else self._has_answered):
                    raise
            time.sleep(wait)
            wait = min(wait * 2, 5)


def _status(error: Exception) -> int:
    """Return the status that a store answered with, or 0."""
    found = STATUS.search(str(error))
    return int(found[1]) if found else 0
