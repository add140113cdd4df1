"""URLs of fsspec: which names are read through fsspec, how messages show them, and what is refused in them.

A URL of fsspec is a chain of parts with ``::`` between them (``zip://a.ffr::simplecache::https://host/x.zip``). Each
part is a protocol, or a protocol with a path; the last one may be the path of a local file.
"""

from __future__ import annotations

import os
import re
from typing import Final

from fffs.base.paths import absolute_path
from fffs.errors import SourceNotFoundError, UsageError

_CHAIN: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+://")
_OWN: Final = re.compile(r"(?:s3|gs|az|https?|file)://", re.IGNORECASE)
_FILE: Final = re.compile(r"\Afile://(?=/)")
# Their URLs have the form host:name@version, which is not a password.
_VERSIONED: Final = ("github", "git")


def is_fsspec_url(name: str) -> bool:
    """Whether a name is a URL that only fsspec can read."""
    return _CHAIN.match(name) is not None and _OWN.match(name) is None


def without_file_scheme(name: str) -> str:
    """Return the path of ``file:///path``, and every other name unchanged."""
    return _FILE.sub("", name)


def shown_url(url: str) -> str:
    """Return a URL of fsspec for messages: without passwords, and without queries, which may be signatures."""
    return "::".join(_shown_part(part) for part in url.split("::"))


def absolute_url(url: str, folder: str | None = None) -> str:
    """Return a URL of fsspec that means the same in every folder: a local path at its end is made absolute.

    folder: as for ``absolute_path``, whose errors this raises. Raises UsageError if the URL holds a password.
    """
    refuse_password(url)
    *above, last = url.split("::")
    if above and last and not _is_protocol(last):
        scheme, mark, path = last.rpartition("file://")
        last = scheme + mark + absolute_path(path, folder)
    return "::".join([*above, last])


def refuse_password(url: str) -> None:
    """Raise UsageError if a URL of fsspec holds a password: it would be in pickles, and in the list of processes."""
    for part in url.split("::"):
        if _user_of(part):
            raise UsageError(
                f"{shown_url(url)}: a URL must not contain a password; put it into the configuration of fsspec "
                "(~/.config/fsspec/NAME.json, or a variable such as FSSPEC_SFTP_PASSWORD)"
            )


def is_folder_url(url: str) -> bool:
    """Whether a URL of fsspec names a folder: its first path ends with a slash."""
    return url.partition("::")[0].endswith("/") and not url.partition("::")[0].endswith("://")


def folder_and_chain(name: str) -> tuple[str, str]:
    """Return the folder in the name of a folder, and what must follow the name of a file in it.

    The latter is empty except for a URL of fsspec. Raises UsageError if that holds a password, and SourceNotFoundError
    if its first part is no path.
    """
    if not is_fsspec_url(name):
        return name, ""
    refuse_password(name)
    folder, mark, rest = name.partition("::")
    if "://" not in folder:  # a cache in front of the folder
        raise SourceNotFoundError(f"{shown_url(name)}: only the first part of a URL can be a folder")
    return folder, mark + rest


def split_chain(name: str) -> tuple[str, str, str]:
    """Return folder and last part of the name of a file, as ``os.path.split``, and what follows it in a URL of fsspec.

    The last part is empty if the first part of the URL is no path, as of a cache in front of a file.
    """
    if not is_fsspec_url(name):
        return *os.path.split(name), ""
    first, mark, rest = name.partition("::")
    folder, slash, base = first.rpartition("/")
    return (folder + slash, base, mark + rest) if slash else ("", "", name)


def file_part(name: str) -> str:
    """Return the part of a URL of fsspec with the name of the file: its first path. Other names as they are."""
    return next((part for part in name.split("::") if "://" in part), name) if is_fsspec_url(name) else name


def _is_protocol(part: str) -> bool:
    """Whether the last part of a chain is not a local path. fsspec takes a word of small letters for a protocol."""
    return not _FILE.match(part) and ("://" in part or re.fullmatch("[a-z]+", part) is not None)


def _user_of(part: str) -> str:
    """Return what precedes the host in a part of a chain, if it holds a password."""
    scheme, mark, rest = part.partition("://")
    if not mark or scheme.lower() in _VERSIONED:
        return ""
    authority = rest.partition("/")[0]
    user, at, _ = authority.rpartition("@")
    if at:
        return user + at if ":" in user else ""
    # The password itself may hold a slash: host:port is the only other use of a colon.
    port = authority.partition(":")[2]
    return rest[: rest.rindex("@") + 1] if port and not port.isdecimal() and "@" in rest else ""


def _shown_part(part: str) -> str:
    scheme, mark, rest = part.partition("://")
    if not mark:
        return part
    if user := _user_of(part):
        rest = "…@" + rest[len(user) :]
    path, query, _ = rest.partition("?")
    return f"{scheme}{mark}{path}" + ("?…" if query else "")
