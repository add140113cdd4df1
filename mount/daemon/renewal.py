"""Keeps the access of a mount to objects in stores: renews what expires, and follows the settings of requests."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress

import trio

from fffs.base.importing import importing
from fffs.errors import FffsError
from fffs.files.file import File
from fffs.mount.fs.waiting import in_thread

_log = logging.getLogger("fffs.mount")

# Seconds before a signature of an object expires at which it is renewed, and between two looks whether one was refused.
RENEWAL, REFUSED = 60.0, 1.0


async def keep_access(sources: Iterable[File]) -> None:
    """Renew what gives access to objects, before it expires, or when native threads wait because it was refused.

    Looks at the settings of requests, too, which native threads cannot do. Returns at once if no source is in a store,
    otherwise it runs until cancelled.
    """
    remote = [file for file in sources if file.is_remote]
    if not remote:
        return
    signed = [file for file in remote if file.access_expires < math.inf]
    for file in signed:
        file.await_access()
    not_before = dict.fromkeys(signed, 0.0)
    with importing:
        from fffs.objects.http_settings import follow_settings
    while True:
        await trio.sleep(REFUSED)
        with suppress(FffsError):
            await in_thread(follow_settings)
        now = time.monotonic()
        for file in signed:
            refused = file.access_refused
            if refused or (file.access_expires <= now + RENEWAL and now >= not_before[file]):
                not_before[file] = now + RENEWAL
                await _renew(file, math.inf if refused else RENEWAL)


async def _renew(file: File, ahead: float) -> None:
    """Renew the access to an object if it expires within some seconds. Reads of what is cached go on if that fails."""
    try:
        await in_thread(functools.partial(file.renew_access, ahead))
    except FffsError as error:
        _log.warning("%s", error)
    except Exception:  # it is tried again
        _log.exception("%s: access cannot be renewed", file.name)
