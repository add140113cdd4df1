"""link_parts: lets a local target appear, with all of its parts at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from fffs.base.failures import writing
from fffs.files.atomic_folder import AtomicFolder
from fffs.files.dirfd import NO_LINKS
from fffs.files.temporary import is_there

_ATTEMPTS: Final = 100


def link_parts(target: str, place: int, names: Iterable[tuple[str, str]]) -> None:
    """Put a folder in place that has files of another one.

    The files keep their names there: whoever is killed meanwhile, the next one can do it again. Where there are no hard
    links, they lose these names, but get them back after an error.

    Args:
        target: the new folder.
        place: the other folder, open.
        names: of each file, from ``place`` on, and in the target.

    Raises as ``AtomicFolder``.

    """
    with AtomicFolder(target, target) as folder:
        begun: list[tuple[str, str]] = []
        try:
            with writing(target):
                for path, name in names:
                    begun.append((name, path))
                    _link(path, place, name, folder.fd)
            folder.commit()
        except BaseException:
            if not folder.in_place:
                _move_back(begun, folder.fd, place)
            raise


def _link(path: str, place: int, name: str, folder: int) -> None:
    """Give a file another name in an open folder; where there are no hard links, instead of its own. Raises OSError."""
    for last in range(_ATTEMPTS)[::-1]:
        try:
            os.link(path, name, src_dir_fd=place, dst_dir_fd=folder, follow_symlinks=False)
            return
        except FileNotFoundError:  # also if a late attempt at the task replaces the part in the middle of the call
            if not last or not is_there(place, os.fsencode(path)):
                raise
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            os.rename(path, name, src_dir_fd=place, dst_dir_fd=folder)
            return


def _move_back(names: Iterable[tuple[str, str]], folder: int, place: int) -> None:
    """Give files that lost their names in ``place`` these again."""
    for name, path in names:
        with contextlib.suppress(OSError):
            if not is_there(place, os.fsencode(path)):
                os.rename(name, path, src_dir_fd=folder, dst_dir_fd=place)
