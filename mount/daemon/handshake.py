"""The first message of a connection, FUSE_INIT, with limits in its answer that pyfuse3 has no way to set.

libfuse gets one end of a socket pair in place of the device. The kernel's request is written to the other end; the
reply that comes out is edited in C (``fastpath_init.c``) and sent to the kernel. Then the device replaces the socket.
"""

from __future__ import annotations

import os
import select
import socket

import pyfuse3
import trio

from fffs.native import ffi, lib

# The kernel refuses a smaller buffer.
_LARGEST = 1 << 16


class Device:
    """The FUSE device of a mount. Owns its descriptor."""

    def __init__(self, fuse: int) -> None:
        self._fuse = fuse
        self._ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.number = its.detach()
        """The descriptor that libfuse gets as ``/dev/fd/N`` and closes."""
        self.connected = trio.Event()
        """Set when the mount answers requests."""

    async def connect(self) -> None:
        """Exchange the first messages. Afterwards ``number`` is the device.

        Raises:
            OSError: the kernel closed the connection, because the mount was already unmounted.

        """
        with self._ours as ours:
            ours.send(os.read(self._fuse, _LARGEST))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pyfuse3.main)
                await trio.lowlevel.wait_readable(ours)
                nursery.cancel_scope.cancel()
            # Nothing may wait for the socket now: an event loop would not notice that its number is another file.
            answer = bytearray(ours.recv(_LARGEST))
            lib.fffs_init_set_limits(ffi.from_buffer("uint8_t[]", answer), len(answer))
            os.write(self._fuse, answer)
        os.dup2(self._fuse, self.number, inheritable=False)
        self.close()
        self.connected.set()

    async def ended(self) -> None:
        """Wait until the connection to the kernel has ended: after the last unmount."""
        with select.epoll() as ends:
            ends.register(self.number, 0)  # poll reports errors without being asked, and the end of a connection is one
            await trio.lowlevel.wait_readable(ends.fileno())

    def close(self) -> bool:
        """Close the descriptor that libfuse does not close. May be called again. Returns True: no thread is running."""
        self._ours.close()
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1
        return True
