"""A proxy for tests that connects clients with servers (CONNECT), or refuses to, and may want a password."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """``lines``: what it was asked for. ``status``: what it answers. ``access``: USER:PASSWORD, if it wants one."""

    address: str
    lines: list[str] = field(default_factory=list)
    status: int = 200
    access: str = ""

    def _judge(self, head: str) -> int:
        token = base64.b64encode(self.access.encode()).decode()
        if self.access and f"proxy-authorization: basic {token}".lower() not in head.lower():
            return 407
        return self.status

    def serve(self, client: socket.socket) -> None:
        """Serve one connection until one of its ends is closed."""
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(4096)
                if not piece:
                    return
                head += piece
            line = head.decode("latin-1").partition("\r\n")[0]
            self.lines.append(line)
            status = self._judge(head.decode("latin-1"))
            client.sendall(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode())
            if status != 200:
                return
            host, _, port = line.split()[1].rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                thread = threading.Thread(target=_copy, args=(server, client))
                thread.start()
                _copy(client, server)
                thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxying() -> Iterator[ConnectProxy]:
    """Run a proxy for the block."""
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=proxy.serve, args=(client,), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ConnectProxy(f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=accept)
        thread.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
