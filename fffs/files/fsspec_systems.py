"""File systems of fsspec: connecting to one by a URL, listing folders, and what is said of its exceptions."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fffs.base.importing import importing
from fffs.base.url_secrets import proxy_secrets, without_users
from fffs.errors import AccessError, ReadError, SourceNotFoundError, UsageError

FOLDER: Final = "is a folder; a slash at the end of the URL opens the files in it"

LONGEST: Final = 200  # characters of an exception that a message shows

WEB: Final = frozenset({"http", "https"})
"""Protocols whose servers may answer with a page in place of a file that does not exist."""

HIDING: Final = frozenset({*WEB, "s3", "s3a", "gs", "gcs"})
"""Protocols whose servers may refuse access to a file that does not exist: to those that may not list a folder."""

BLOCK_CACHES: Final = frozenset({"blockcache", "cached"})
FILE_CACHES: Final = frozenset({"filecache", "simplecache"})
"""Protocols of fsspec that copy whole files."""

# Answers of HTTP that mean that there is no such file; some servers say 403 for it.
_NONE: Final = (403, 404, 410)
_REFUSED: Final = (401, 403)

_SECRET: Final = ("secret", "token", "pass", "key", "credential", "sas")
_QUERY: Final = re.compile(r"(?<=\S)\?\S*")


def import_fsspec(name: str) -> Any:
    """Return the module fsspec. Raises UsageError if it is missing. name: of the file, for the message."""
    with importing:
        try:
            import fsspec
            import fsspec.asyn
        except ModuleNotFoundError:
            raise UsageError(f"{name}: this needs fsspec, which is missing: pip install 'fffs[fsspec]'") from None
        if not hasattr(fsspec.asyn, "reset_after_fork"):  # a child of fork would wait for a thread of its parent
            raise UsageError(f"{name}: fsspec {fsspec.__version__} is too old: pip install 'fffs[fsspec]'")
    return fsspec


def connect(url: str, name: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it.

    Raises:
        UsageError: fsspec, or what it needs for the protocol, is missing; or it does not know the protocol, or its
            cache shows bytes that no file has.

    """
    fsspec = import_fsspec(name)
    protocols = {part.partition("://")[0] for part in url.split("::")}
    if not BLOCK_CACHES.isdisjoint(protocols):
        raise no_block_cache(name)
    try:
        with importing:  # only this: connecting may take long
            for protocol in protocols & set(fsspec.available_protocols()):
                fsspec.get_filesystem_class(protocol)
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{name}: {said_by(error)}") from None
    return found


def file_system_class(protocol: str, name: str) -> Any:
    """Return the class of a protocol's file systems. Raises UsageError: fsspec does not know it. name: for messages."""
    try:
        return import_fsspec(name).get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{name}: {said_by(error)}") from None


def configured(protocol: str, options: dict[str, Any], name: str) -> dict[str, Any]:
    """Return options with those of fsspec's configuration, which may name a user. Raises as ``file_system_class``."""
    kind = file_system_class(protocol, name)
    found: dict[str, Any] = import_fsspec(name).config.apply_config(kind, options)
    return found


def protocols_of(fs: Any) -> set[str]:
    """Return the names of a file system's protocol. Of one that keeps copies of another's files, those of the other."""
    for _ in range(8):
        within = getattr(fs, "fs", None)
        if within is None:
            break
        fs = within
    found = getattr(fs, "protocol", ())
    return {found} if isinstance(found, str) else {str(name) for name in found or ()}


def is_plain(value: Any) -> bool:
    """Return whether a repr tells all of a value."""
    if isinstance(value, dict):
        return all(is_plain(item) for item in (*value.keys(), *value.values()))
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, bytes, int, float, bool)


def no_block_cache(name: str) -> UsageError:
    """Return the exception for a file that would be read through fsspec's cache of blocks.

    That takes a block for cached before it is read, also in its file on the disk, and shows zeros in place of one that
    could not be.
    """
    return UsageError(f"{name}: blockcache shows zeros after an error of reading; use filecache or simplecache")


def failure_of(error: Exception, name: str, detail: str = "", secrets: Sequence[str] = ()) -> Exception:
    """Return the exception of fffs for one of a file system, which may be of any class.

    name, detail: of the file, and the part of it that was read. secrets: texts that the message must not contain.
    """
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and _status_of(cause) in _REFUSED:
        return AccessError(f"{name}: no access: {said_by(cause, secrets)}")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SourceNotFoundError(f"{name}: no such file or folder")
    if isinstance(error, IsADirectoryError):
        return UsageError(f"{name}: {FOLDER}")
    words = said_by(error, secrets)
    if isinstance(error, PermissionError):
        return AccessError(f"{name}: no access: {words}")
    return ReadError(errno.EIO, name, f"{detail}: {words}" if detail else words)


def require_none(error: FileNotFoundError) -> None:
    """Raise an error of HTTP again that fsspec takes for a file that does not exist, unless the server says so.

    It raises FileNotFoundError for every failure, from that.
    """
    cause = error.__cause__
    if isinstance(cause, Exception) and _status_of(cause) not in _NONE:
        raise OSError(said_by(cause)) from None


def _status_of(error: Exception) -> Any:
    return getattr(error, "status", None)


def said_by(error: Exception, secrets: Sequence[str] = ()) -> str:
    """Return an exception as part of a line: without passwords and queries of URLs, and without secrets."""
    text = " ".join(str(error).split())
    for secret in (*secrets, *_configured_secrets(), *proxy_secrets(os.environ)):
        text = text.replace(secret, "…")
    text = _QUERY.sub("?…", without_users(text))
    text = "".join(c if c.isprintable() else "?" for c in text)[:LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def secrets_in(options: Any) -> list[str]:
    """Return the texts of options that are secrets by the names of the options, the longest first."""
    return sorted(set(_texts(options, False)), key=len, reverse=True)


def _configured_secrets() -> list[str]:
    """Return the secrets of fsspec's configuration: its files, and variables such as FSSPEC_FTP_PASSWORD."""
    config = sys.modules.get("fsspec.config")
    return secrets_in(getattr(config, "conf", {}))


def _texts(options: Any, is_secret: bool) -> Iterator[str]:
    if isinstance(options, dict):
        for name, value in options.items():
            yield from _texts(value, is_secret or any(word in str(name).lower() for word in _SECRET))
    elif is_secret and isinstance(options, str) and len(options) >= 4:
        yield options
