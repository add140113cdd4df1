"""File systems: what they are known to do, by the number that statfs(2) gives for their type.

What is in neither list is taken for what is safe: its times are not believed, and its inode numbers are.
"""

from __future__ import annotations

from typing import Final

from fffs.native import lib

# The numbers are those of <linux/magic.h>. What a new one does has to be looked at before it is listed.
_KEEP_TIMES: Final = {
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0xF2F52010,  # F2FS
    0xCA451A4E,  # bcachefs
}
_MAKE_INODES_UP: Final = {
    0x65735546,  # FUSE
    0x01021997,  # 9p
    0xFF534D42,  # CIFS
    0xFE534D42,  # SMB 2
    0x517B,  # SMB
    0x4D44,  # FAT
    0x2011BAB0,  # exFAT
}


def keeps_times(fd: int) -> bool:
    """Whether fstat of the open file shows that its content changed, at once and whoever changes it: so do the disks of
    this machine that are known to; not network, FUSE, overlay, tmpfs, and what is not known.
    """
    return lib.fffs_file_system(fd) in _KEEP_TIMES


def has_inode_numbers(fd: int) -> bool:
    """Whether what is open as fd is on a file system in which one file has one inode number, and no other has it."""
    kind = lib.fffs_file_system(fd)
    return kind >= 0 and kind not in _MAKE_INODES_UP
