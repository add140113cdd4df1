"""A proxy for tests that connects clients with servers (CONNECT), or refuses to, and may want a password."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
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
            _connect(client, host.strip("[]"), int(port))


class SocksProxy(ConnectProxy):
    """A proxy of SOCKS 5. ``status``: the number that it answers, and 200 for none."""

    def serve(self, client: socket.socket) -> None:
        """Serve one connection until one of its ends is closed. Each byte of an answer comes alone."""
        with client, contextlib.suppress(OSError, EOFError):
            _, count = _receive(client, 2)
            wanted = 2 if self.access else 0
            offered = wanted in _receive(client, count)
            _send(client, bytes([5, wanted if offered else 255]))
            if not offered:
                return
            if wanted:
                given = [_receive(client, _receive(client, 2 - k)[-1]).decode() for k in range(2)]
                _send(client, bytes([1, ":".join(given) != self.access]))
            kind = _receive(client, 4)[3]
            address = _receive(client, {1: 4, 4: 16}.get(kind) or _receive(client, 1)[0])
            host = address.decode() if kind == 3 else socket.inet_ntop(_FAMILIES[kind], address)
            port = int.from_bytes(_receive(client, 2), "big")
            self.lines.append(f"{kind} {host}:{port}")
            _send(client, bytes([5, 0 if self.status == 200 else self.status, 0, 3, 2]) + b"me" + bytes(2))
            if self.status == 200:
                _connect(client, host, port)


_FAMILIES = {1: socket.AF_INET, 4: socket.AF_INET6}


def _receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _send(client: socket.socket, data: bytes) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in data:
        client.sendall(bytes([byte]))


def _connect(client: socket.socket, host: str, port: int) -> None:
    with socket.create_connection((host, port)) as server:
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
def proxying(kind: type[ConnectProxy] = ConnectProxy, tls: ssl.SSLContext | None = None) -> Iterator[ConnectProxy]:
    """Run a proxy for the block. tls: it speaks HTTPS."""
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=proxy.serve, args=(client,), daemon=True))
                threads[-1].start()

    plain = socket.create_server(("127.0.0.1", 0))
    with tls.wrap_socket(plain, server_side=True) if tls else plain as listener:
        proxy = kind(f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
