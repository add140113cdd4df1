"""Known properties of file systems, by the type number of statfs(2).

For a file system in none of the lists, these assumptions hold: its times are unreliable, its inode numbers are
reliable, and other machines use it.
"""

from __future__ import annotations

from typing import Final

from fffs.native import lib

# The numbers are those of <linux/magic.h>. Examine a file system before adding it.
_KEEP_TIMES: Final = {
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0xF2F52010,  # F2FS
    0xCA451A4E,  # bcachefs
}
_OF_THIS_MACHINE: Final = _KEEP_TIMES | {
    0x2FC12FC1,  # ZFS
    0x01021994,  # tmpfs
    0x858458F6,  # ramfs
    0x794C7630,  # overlay: the layer that is written to is never on a network file system
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
_PROC: Final = 0x9FA0
_IN_MEMORY: Final = {0x01021994, 0x858458F6}  # tmpfs, ramfs


def keeps_times(fd: int) -> bool:
    """Whether fstat of an open file shows every change of its content immediately.

    True for listed file systems on local disks; False for network, FUSE, overlay, tmpfs and unknown ones.
    """
    return lib.fffs_file_system(fd) in _KEEP_TIMES


def has_inode_numbers(fd: int) -> bool:
    """Whether the file system of ``fd`` has one inode number for each file, and different ones for different files."""
    kind = lib.fffs_file_system(fd)
    return kind >= 0 and kind not in _MAKE_INODES_UP


def is_proc(fd: int) -> bool:
    """Whether the file system of ``fd`` is procfs."""
    return bool(lib.fffs_file_system(fd) == _PROC)


def is_in_memory(fd: int) -> bool:
    """Whether what is written to the file system of ``fd`` takes memory."""
    return lib.fffs_file_system(fd) in _IN_MEMORY


def is_of_this_machine(fd: int) -> bool:
    """Whether only this machine uses the file system of ``fd``: then all its users see each other's locks."""
    return lib.fffs_file_system(fd) in _OF_THIS_MACHINE
