"""The first message of a connection, FUSE_INIT, with limits in its answer that pyfuse3 has no way to set.

libfuse is given one end of a socket pair for its device. The kernel's request goes in at the other end, the answer
comes out, is edited in C (``fastpath_init.c``) and sent to the kernel, and then the device takes the place of the
socket.
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
    """The kernel's end of a mount. Owns the descriptor given to it."""

    def __init__(self, fuse: int) -> None:
        self._fuse = fuse
        self._ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.number = its.detach()
        """What libfuse is given as ``/dev/fd/N``; it closes it."""
        self.connected = trio.Event()
        """The kernel lets others ask."""

    async def connect(self) -> None:
        """Exchange the first messages. Afterwards ``number`` is the device.

        Raises:
            OSError: the kernel ended the connection: it was unmounted already.

        """
        with self._ours as ours:
            ours.send(os.read(self._fuse, _LARGEST))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pyfuse3.main)
                await trio.lowlevel.wait_readable(ours)
                nursery.cancel_scope.cancel()
            # Nothing waits for the socket any more: an event loop would not notice that the number means another file.
            answer = bytearray(ours.recv(_LARGEST))
            lib.fffs_init_set_limits(ffi.from_buffer("uint8_t[]", answer), len(answer))
            os.write(self._fuse, answer)
        os.dup2(self._fuse, self.number, inheritable=False)
        self.close()
        self.connected.set()

    async def ended(self) -> None:
        """Wait until the connection to the kernel has ended: after the last unmount."""
        with select.epoll() as ends:
            ends.register(self.number, 0)  # an error, which the end of a connection is, is reported all the same
            await trio.lowlevel.wait_readable(ends.fileno())

    def close(self) -> bool:
        """Close what libfuse does not. May be called again. True: nothing is left running."""
        self._ours.close()
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1
        return True
