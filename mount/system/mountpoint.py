"""The folder to mount on: checks it first, creates it if it is missing, and then removes it afterwards."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from fffs.errors import DeadMountError, MountError
from fffs.mount.system.daemon_attributes import within
from fffs.mount.system.mounts import mount_at

# Marks folders that were created for a mount. A killed daemon cannot remove them, and the command that cleans up must
# not remove any others. On a file system without extended attributes the empty folder stays.
MARK = "user.fffs.mountpoint"
# How often creating it is tried again while other processes create and remove folders above it.
ATTEMPTS = 100
# Seconds that a mount at this place has to answer. If its daemon has ended, the kernel answers immediately.
ANSWER_SECONDS = 2.0


class MountPoint:
    """A folder to mount on, and the folders that were created for it. Not thread-safe.

    Raises:
        DeadMountError: a mount is there whose daemon has ended.
        MountError: the folder cannot be mounted on; the message has the reason.

    """

    def __init__(self, path: str, nonempty: bool = False) -> None:
        """path: as ``mounts.canonical`` returns it. nonempty: allow its content to be hidden."""
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
        raise MountError(
            f"{path}: cannot create the mount point: other processes create and remove the same folders; try again"
        )

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
            self._made = _marked(self.path)  # left by a killed daemon
        return True

    def _make(self) -> bool:
        """Create the folder and those above it. Returns False if another process interfered: then try again."""
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
                continue  # created for another mount, which removes it unless ours is the last one below it
            except OSError as error:
                raise MountError(f"{path}: cannot create the mount point: {error.strerror}") from None
            self._made.append(path)
            try:
                os.setxattr(path, MARK, b"")
            except OSError:
                self._mark = False
        return True

    def remove(self) -> None:
        """Remove the folders that were created here, unless they are not empty or were replaced.

        Then remove those above them that were created for other mounts, if these have ended.
        """
        with suppress(OSError):
            while self._made and (not self._mark or is_marked(self._made[-1])):
                outermost = self._made.pop()
                os.rmdir(outermost)
                if not self._made:
                    remove_left(os.path.dirname(outermost))
        self._made = []


def remove_left(path: str) -> None:
    """Remove a mount point, and the folders above it, that a daemon created and that carry no mount now."""
    with suppress(OSError):
        for folder in reversed(_marked(path)):
            os.rmdir(folder)


def is_marked(path: str) -> bool:
    """Whether the folder was created for a mount."""
    try:
        os.getxattr(path, MARK, follow_symlinks=False)
    except OSError:
        return False
    return True


def _marked(path: str) -> list[str]:
    """Return the path and the folders above it that have the mark, outermost first."""
    found: list[str] = []
    while path != os.sep and is_marked(path):
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def refuse_mounted(path: str) -> None:
    """Raise if an fffs mount is at this path, or another mount that does not answer."""
    mount = mount_at(path)
    if mount is None:
        return
    answer = within(ANSWER_SECONDS, lambda: os.statvfs(path))  # the daemon answers this; stat may come from a cache
    if isinstance(answer, OSError) and answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        raise DeadMountError(
            f"{path}: the daemon of this mount is gone ({os.strerror(errno.ENOTCONN)}); "
            f"clean up with: fffs umount {path}"
        )
    if mount.ours:
        raise MountError(f"{path}: {mount.source} is mounted there; unmount it first: fffs umount {path}")
    if answer is None:
        raise MountError(f"{path}: the mount there does not answer ({mount.type}); unmount it: umount -l {path}")
