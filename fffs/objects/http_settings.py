"""The settings of requests that read objects, which libcurl gets.

Environment:
    FFFS_DEADLINE: seconds for which a request may fail before its error is raised. Default: 60.
    FFFS_CONNECTIONS: the most connections of a batch. Default: 64, at most 256.
    AWS_ALLOW_HTTP: ``true``: redirections from http may lead to http.
    SSL_CERT_FILE, SSL_CERT_DIR: a file and a folder with the certificates of authorities that are trusted, in place of
        the usual ones.
    AWS_CA_BUNDLE: a file in place of SSL_CERT_FILE. A file that a profile of AWS names is used besides.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Final

from fffs.errors import UsageError
from fffs.native import ffi, lib
from fffs.objects.aws_profile import certificates_file
from fffs.objects.names import is_true

DEADLINE: Final = 60.0
CONNECTIONS: Final = 64

_NAMES: Final = ("FFFS_DEADLINE", "FFFS_CONNECTIONS", "AWS_ALLOW_HTTP", "SSL_CERT_FILE", "SSL_CERT_DIR")
_INTERVAL: Final = 1.0  # seconds
_looked = -math.inf
_known: tuple[str | None, ...] | None = None


def follow_settings(*, at_once: bool = False) -> None:
    """Pass the settings on to libcurl, if they changed.

    at_once: also if they were looked at during the last second. Otherwise those that are wrong are not used: what is
    open is read with the old ones, and the next opening tells.

    Raises MemoryError, UsageError.
    """
    global _looked
    now = time.monotonic()
    if now < _looked + _INTERVAL and not at_once:
        return
    _looked = now
    try:
        _pass_on((*(os.environ.get(name) for name in _NAMES), certificates_file(os.environ)))
    except UsageError:
        if at_once:
            raise


def _pass_on(values: tuple[str | None, ...]) -> None:
    global _known
    if values == _known:
        return
    seconds, connections, plain, file, folder, bundle = values
    status = lib.fffs_http_configure(
        _number("FFFS_DEADLINE", seconds, DEADLINE, 1, 86400),
        int(_number("FFFS_CONNECTIONS", connections, CONNECTIONS, 1, lib.FFFS_HTTP_CONNECTIONS)),
        is_true(plain),
        *_authorities(file, folder, bundle),
    )
    if status:
        raise MemoryError("not enough memory for the settings of HTTP")
    _known = values


def _authorities(file: str | None, folder: str | None, bundle: str | None) -> tuple[Any, Any, bool]:
    """Return the file and folder of authorities for libcurl, and whether it is to add the usual ones to them."""
    named = os.environ.get("AWS_CA_BUNDLE")  # replaces them: to read them takes 40 ms for each connection
    adds = bool(bundle and not named and lib.fffs_http_adds_usual())
    file = bundle if adds else named or file or bundle
    return os.fsencode(file) if file else ffi.NULL, os.fsencode(folder) if folder else ffi.NULL, adds


def deadline() -> float:
    """Return FFFS_DEADLINE. Raises UsageError."""
    return _number("FFFS_DEADLINE", os.environ.get("FFFS_DEADLINE"), DEADLINE, 1, 86400)


def _number(name: str, value: str | None, default: float, least: float, most: float) -> float:
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise UsageError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
    return number
