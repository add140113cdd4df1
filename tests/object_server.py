"""A small HTTP server with objects in memory, which can misbehave: answers late, short, wrong, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RANGE = re.compile(r"bytes=(\d+)-(\d+)$")


@dataclass
class Answer:
    """What the server is about to send. A fault changes it."""

    status: int
    headers: dict[str, str]
    body: bytes
    delay: float = 0.0
    cut: int | None = None  # bytes of the body after which the connection is reset


@dataclass
class Request:
    path: str
    start: int
    end: int
    headers: dict[str, str]


Fault = Callable[[Request, Answer], None]


def etag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@dataclass
class ObjectServer:
    """The state of the server. ``faults`` are used up one by one, ``always`` is applied to each answer."""

    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    connections: int = 0
    sockets: list[socket.socket] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, data: bytes) -> str:
        """Store an object, and return its URL."""
        self.objects[f"/{name}"] = data
        return f"{self.url}/{name}"

    def answer(self, request: Request) -> Answer:
        data = self.objects.get(request.path)
        if data is None:
            return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": etag_of(data), "Last-Modified": "Tue, 24 Nov 2026 00:00:00 GMT"}
        if request.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        if request.start >= len(data):
            return Answer(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
        body = data[request.start : request.end]
        last = request.start + len(body) - 1
        headers["Content-Range"] = f"bytes {request.start}-{last}/{len(data)}"
        return Answer(206, headers, body)


def _handler(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with server.lock:
                server.connections += 1
                server.sockets.append(self.connection)

        def do_GET(self) -> None:
            found = RANGE.match(self.headers.get("Range", ""))
            start, end = (int(found[1]), int(found[2]) + 1) if found else (0, 1 << 62)
            request = Request(self.path, start, end, dict(self.headers.items()))
            with server.lock:
                server.requests.append(request)
                answer = server.answer(request)
                answer.headers.setdefault("Content-Length", str(len(answer.body)))
                if server.always:
                    server.always(request, answer)
                if server.faults:
                    server.faults.pop(0)(request, answer)
            time.sleep(answer.delay)
            with contextlib.suppress(OSError):
                self._send(answer)

        def _send(self, answer: Answer) -> None:
            head = f"HTTP/1.1 {answer.status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in answer.headers.items())
            self.wfile.write(head.encode("latin-1") + b"\r\n" + answer.body[: answer.cut])
            if answer.cut is not None or len(answer.body) != int(answer.headers.get("Content-Length", -1)):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that goes away


@contextlib.contextmanager
def serving(
    port: int = 0, tls: ssl.SSLContext | None = None, objects: dict[str, bytes] | None = None
) -> Iterator[ObjectServer]:
    """Run a server for the block. tls: it speaks HTTPS. objects: those that it has from the beginning."""
    state = ObjectServer(dict(objects or {}))
    with _Server(("127.0.0.1", port), _handler(state)) as server:
        if tls:
            # Handshakes belong to the threads of the connections, not to the one that accepts them.
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        state.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
            for kept in state.sockets:  # which would be served for as long as the client keeps them
                with contextlib.suppress(OSError):
                    kept.shutdown(socket.SHUT_RDWR)


# ---------------------------------------------------------------- faults


def status(code: int, **headers: str) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        answer.status, answer.body = code, b"<Error><Code>Some</Code><Message>reason</Message></Error>"
        answer.headers = {k.replace("_", "-"): v for k, v in headers.items()} | {
            "Content-Length": str(len(answer.body))
        }

    return change


def reset_after(count: int) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        answer.cut = count

    return change


def late(seconds: float) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        answer.delay = seconds

    return change


def header(name: str, value: str | None) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        answer.headers.pop(name, None)
        if value is not None:
            answer.headers[name] = value

    return change


def flip(place: int) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        body = bytearray(answer.body)
        body[place % len(body)] ^= 1
        answer.body = bytes(body)

    return change


def good(request: Request, answer: Answer) -> None:
    """Change nothing."""
