"""Names that are those of files and folders, or URLs: opens, lists and looks for what they name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fffs.base.failures import reading
from fffs.base.importing import importing
from fffs.errors import SourceNotFoundError
from fffs.files.file import File
from fffs.files.local import LocalFile
from fffs.objects.fsspec_url import is_folder_url, is_fsspec_url, refuse_password
from fffs.objects.names import is_remote, is_url, parse_url, shown

if TYPE_CHECKING:
    from fffs.objects.remote import RemoteFile

# What only URLs need is imported when the first is opened or listed: most names are paths.


def open_file(name: str) -> File:
    """Open a file by its path, or an object by its URL.

    Raises as ``LocalFile.open``, ``RemoteFile.open`` or ``FsspecFile``, and UsageError for a URL with a password.
    """
    if is_fsspec_url(name):
        refuse_password(name)
        with importing:
            from fffs.files.fsspec_urls import open_url
        return open_url(name, shown(name))
    return _open_object(name) if is_url(name) else LocalFile.open(name)


def open_in_order(name: str) -> File:
    """Open a file that is read from its start to its end. Raises as ``open_file``."""
    if not is_url(name):
        return open_file(name)
    with importing:
        from fffs.files.read_ahead import ReadAhead
    return ReadAhead(_open_object(name))


def _open_object(name: str) -> RemoteFile:
    with importing:
        from fffs.objects.remote import RemoteFile
    return RemoteFile.open(name)


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder. A URL is if it ends with a slash, or names a bucket."""
    if is_fsspec_url(name):
        return is_folder_url(name)
    return parse_url(name).is_folder if is_url(name) else os.path.isdir(name)


def exists(name: str) -> bool:
    """Whether there is a file or object. Raises as ``open_file``."""
    if not is_remote(name):
        return os.path.lexists(name)
    if is_url(name) and parse_url(name).is_web:
        return True  # there are no folders, so that nothing but opening it follows
    try:
        open_file(name).close()
    except SourceNotFoundError:
        return False
    return True


def is_file(name: str) -> bool:
    """Whether a name is that of a regular file, or of an object that exists. Raises as ``exists``."""
    return not is_folder(name) and exists(name) if is_remote(name) else os.path.isfile(name)


def list_folder(name: str) -> list[str]:
    """Return the names in a folder. Raises OSError; for a URL, as ``list_objects``."""
    if is_fsspec_url(name):
        refuse_password(name)
        with importing:
            from fffs.files.fsspec_urls import list_url
        return list_url(name, shown(name))
    if not is_url(name):
        return os.listdir(name)
    with importing:
        from fffs.objects.client import list_objects
    folder = parse_url(name)
    prefix = f"{folder.key.rstrip('/')}/" if folder.key else ""
    names = (key[len(prefix) :].rstrip("/") for key, _, _ in list_objects(folder, delimiter=True))
    return list(dict.fromkeys(names))  # an object and a folder may have the same name


def has_objects(url: str) -> bool:
    """Return whether there is an object in a folder of a store, or below. Some stores have empty folders, too.

    Raises as ``list_objects``.
    """
    with importing:
        from fffs.objects.client import list_objects
    return any(True for _ in list_objects(parse_url(url), delimiter=False))


def names_in(name: str) -> list[str]:
    """Return the names in a folder. Raises ReadError; for a URL, as ``list_objects``."""
    with reading(name):
        return list_folder(name)
