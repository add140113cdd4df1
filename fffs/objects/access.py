"""Access: the signed URL of an object, which is renewed before it expires."""

from __future__ import annotations

import time
from typing import Final

from fffs.errors import FffsError
from fffs.objects import client
from fffs.objects.names import ObjectName

PAUSE: Final = 30.0  # seconds after an attempt that failed, at most; less if it did not take as long


class Access:
    """What gives access to one object. Thread-safe.

    ``signed`` is the last signed URL, ``refusal`` why there is no newer one.
    """

    def __init__(self, name: ObjectName, signed: client.SignedUrl | None = None) -> None:
        """Sign, unless there is a signed URL. Raises as ``client.sign``."""
        self._name = name
        self.signed = signed or client.sign(name)
        self.refusal: FffsError | None = None
        self._not_before = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it should be renewed now, if something is to be fetched."""
        return time.monotonic() > max(self.signed.expires, self._not_before)

    def expires_within(self, seconds: float) -> bool:
        """Whether it should be renewed within so many seconds."""
        return time.monotonic() + seconds > self.signed.expires

    def renew(self) -> None:
        """Sign again. If that fails, the last URL stays: what needs none can still be read.

        Raises as ``client.sign``.
        """
        begin = time.monotonic()
        try:
            self.signed, self.refusal, self._not_before = client.sign(self._name), None, 0.0
        except FffsError as error:
            end = time.monotonic()
            self.refusal, self._not_before = error, end + min(end - begin, PAUSE)
            raise

    @property
    def has_just_failed(self) -> bool:
        """Whether an attempt failed lately that took long: each batch would wait as long again."""
        return time.monotonic() < self._not_before
