"""The folder that is mounted on: checked before, made when missing, and then removed afterwards."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from fffs.errors import DeadMountError, MountError
from fffs.mount.system.asking import within
from fffs.mount.system.mounts import mount_at

# An extended attribute of folders that were made for a mount: a daemon that is killed cannot remove them, and whoever
# cleans up after it must not remove any others. File systems without such attributes keep the empty folder.
MARK = "user.fffs.mountpoint"
# How often making it begins again, when others make and remove folders above it.
ATTEMPTS = 100
# How long what is mounted there may take to answer. For a daemon that is gone the kernel answers, at once.
ANSWER_SECONDS = 2.0


class MountPoint:
    """A folder to mount on, and what was made for it. Not thread-safe.

    Raises:
        DeadMountError: what is mounted there has lost its daemon.
        MountError: it cannot be mounted on, with the reason.

    """

    def __init__(self, path: str, nonempty: bool = False) -> None:
        """path: as ``mounts.canonical`` gives it. nonempty: its content may be hidden."""
        self.path = path
        self._made: list[str] = []
        self._mark = True
        for _ in range(ATTEMPTS):
            refuse_mounted(path)
            try:
                if self._is_there(nonempty) or self._make():
                    return
            except MountError:
                self.remove()
                raise
        self.remove()
        raise MountError(f"{path}: cannot make the mount point: others make and remove the same folders; try again")

    def _is_there(self, nonempty: bool) -> bool:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            raise MountError(f"{self.path}: cannot mount on it: not a folder") from None
        except OSError as error:
            raise MountError(f"{self.path}: cannot mount on it: {error.strerror}") from None
        if names and not nonempty:
            raise MountError(f"{self.path}: not empty; mount on an empty folder, or hide its content with -o nonempty")
        if not names:
            self._made = _marked(self.path)  # left by a daemon that was killed
        return True

    def _make(self) -> bool:
        """False: somebody else made the folder at this moment, or removed one above it."""
        missing = [self.path]
        while not os.path.lexists(os.path.dirname(missing[-1])):
            missing.append(os.path.dirname(missing[-1]))
        for path in reversed(missing):
            try:
                os.mkdir(path)
            except FileNotFoundError:
                return False
            except FileExistsError:
                if path == self.path:
                    return False
                continue  # for another mount, which removes it in the end, unless ours is the last one below it
            except OSError as error:
                raise MountError(f"{path}: cannot make the mount point: {error.strerror}") from None
            self._made.append(path)
            try:
                os.setxattr(path, MARK, b"")
            except OSError:
                self._mark = False
        return True

    def remove(self) -> None:
        """Remove the folders that were made here, unless something is in them by now, or others took their place.

        Then those above them that were made for other mounts, which are gone.
        """
        with suppress(OSError):
            while self._made and (not self._mark or is_marked(self._made[-1])):
                outermost = self._made.pop()
                os.rmdir(outermost)
                if not self._made:
                    remove_left(os.path.dirname(outermost))
        self._made = []


def remove_left(path: str) -> None:
    """Remove a mount point that a daemon made, and the folders that it made above it, where nothing is mounted now."""
    with suppress(OSError):
        for folder in reversed(_marked(path)):
            os.rmdir(folder)


def is_marked(path: str) -> bool:
    """Whether the folder was made for a mount."""
    try:
        os.getxattr(path, MARK, follow_symlinks=False)
    except OSError:
        return False
    return True


def _marked(path: str) -> list[str]:
    """The path and the folders above it that bear the mark, outermost first."""
    found: list[str] = []
    while path != os.sep and is_marked(path):
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def refuse_mounted(path: str) -> None:
    """Raise if an fffs mount is at this path already, or something that does not answer."""
    mount = mount_at(path)
    if mount is None:
        return
    answer = within(ANSWER_SECONDS, lambda: os.statvfs(path))  # unlike those of stat, its answers come from a daemon
    if isinstance(answer, OSError) and answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        raise DeadMountError(
            f"{path}: the daemon of this mount is gone ({os.strerror(errno.ENOTCONN)}); "
            f"clean up with: fffs umount {path}"
        )
    if mount.ours:
        raise MountError(f"{path}: {mount.source} is mounted there; unmount it first: fffs umount {path}")
    if answer is None:
        raise MountError(f"{path}: what is mounted there does not answer ({mount.type}); unmount it: umount -l {path}")
