"""A small HTTP server with objects in memory, which can misbehave: answers late, short, wrong, or not at all.

It takes objects as S3 does, also in parts, without looking at signatures.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import re
import socket
import ssl
import threading
import time
import urllib.parse
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
    lost: bool = False  # nothing is sent, and the connection is closed
    drip: float = 0.0  # seconds before each piece of the body
    drop: int = 1  # bytes of such a piece
    stall: int = -1  # where nothing comes for long
    hold: threading.Event | None = None  # what it waits for


@dataclass
class Request:
    path: str
    start: int
    end: int
    headers: dict[str, str]
    method: str = "GET"
    body: bytes = b""

    @property
    def kind(self) -> str:
        """What is asked for: read, look, put, delete, delete all, begin, part, complete, abort or list."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" in query:
            return "begin" if self.method == "POST" else "list"
        if "uploadId" in query:
            return {"PUT": "part", "POST": "complete", "DELETE": "abort"}[self.method]
        if "delete" in query:
            return "delete all"
        return {"GET": "read", "HEAD": "look", "PUT": "put", "DELETE": "delete"}[self.method]


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
    writing: dict[str, list[Fault]] = field(default_factory=dict)  # by kind, used up one by one
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)  # id -> path, parts
    begun: int = 0
    conditions: bool | None = True  # whether If-None-Match is known; None: it is ignored
    encrypted: bool = False  # whether ETags are other digests than the MD5
    etags: dict[str, str] = field(default_factory=dict)  # of objects that were written in parts
    closes_early: bool = False  # connections are closed before the body of a request is read
    connections: int = 0
    forgotten: int = 0  # as many connections, the first ones, get no answer any more
    sockets: list[socket.socket] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag_of(self, data: bytes) -> str:
        """Return the ETag of an object that was put."""
        return etag_of(b"encrypted" + data if self.encrypted else data)

    def put(self, name: str, data: bytes) -> str:
        """Store an object, and return its URL."""
        self.objects[f"/{name}"] = data
        return f"{self.url}/{name}"

    def write(self, request: Request) -> Answer:
        """Do what a request that is not GET asks for, unless a fault gives it another status."""
        answer = Answer(0, {}, b"")
        if faults := self.writing.get(request.kind):
            faults.pop(0)(request, answer)
        if answer.status == 0:
            done = self._write(request)
            answer.status, answer.headers, answer.body = done.status, done.headers, done.body
        return answer

    def _write(self, request: Request) -> Answer:
        parts = urllib.parse.urlsplit(request.path)
        path, query = (
            urllib.parse.unquote(parts.path),
            dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True)),
        )
        kind, there = request.kind, self.objects.get(path)
        if {"If-None-Match", "If-Match"} & set(request.headers) and self.conditions is False:
            return Answer(501, {}, b"<Error><Code>NotImplemented</Code></Error>")
        if kind == "look":
            headers = {} if there is None else {"ETag": self.etags.get(path, self.etag_of(there))}
            headers |= {"Content-Length": str(len(there or b"")), "Last-Modified": "Tue, 24 Nov 2026 00:00:00 GMT"}
            return Answer(404 if there is None else 200, headers, b"")
        if kind in ("put", "complete") and "If-None-Match" in request.headers and there is not None and self.conditions:
            return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        if kind == "delete":
            self.objects.pop(path, None)
            return Answer(204, {}, b"")
        if kind == "delete all":
            assert base64.b64decode(request.headers["Content-Md5"]) == hashlib.md5(request.body).digest()
            for key in re.findall("<Key>([^<]*)</Key>", request.body.decode()):
                self.objects.pop(f"{path}/{html.unescape(key)}", None)
            return Answer(200, {}, b"<DeleteResult></DeleteResult>")
        if kind in ("put", "complete") and "If-Match" in request.headers and self.conditions:
            if there is None:
                return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            if request.headers["If-Match"] != self.etags.get(path, self.etag_of(there)):
                return Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        if kind == "put":
            self.objects[path] = request.body
            return Answer(200, {"ETag": self.etag_of(request.body)}, b"")
        if kind == "begin":
            self.begun += 1
            self.uploads[f"id{self.begun}"] = path, {}
            return Answer(200, {}, f"<Result><UploadId>id{self.begun}</UploadId></Result>".encode())
        if query.get("uploadId") not in self.uploads:
            return Answer(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>")
        if kind == "part":
            self.uploads[query["uploadId"]][1][int(query["partNumber"])] = request.body
            return Answer(200, {"ETag": etag_of(request.body)}, b"")
        path, sent = self.uploads.pop(query["uploadId"])
        if kind == "complete":
            numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", request.body)]
            self.objects[path] = b"".join(sent[number] for number in numbers)
            digests = b"".join(hashlib.md5(sent[number]).digest() for number in numbers)
            self.etags[path] = f'"{hashlib.md5(digests).hexdigest()}-{len(numbers)}"'
            name = "CompleteMultipartUploadResult"
            return Answer(200, {}, f"<{name}><ETag>{self.etags[path]}</ETag></{name}>".encode())
        return Answer(204, {}, b"")

    def answer(self, request: Request) -> Answer:
        # As it was stored by ``put``, which may be with a query, or by a request.
        data = self.objects.get(request.path)
        if data is None:
            data = self.objects.get(urllib.parse.unquote(request.path.partition("?")[0]))
        if data is None:
            return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": self.etag_of(data), "Last-Modified": "Tue, 24 Nov 2026 00:00:00 GMT"}
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
                self.number = server.connections
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
            if self.number <= server.forgotten:
                answer.hold = threading.Event()
            if answer.hold:
                answer.hold.wait(60)
            with contextlib.suppress(OSError):
                self._send(answer)

        def do_PUT(self) -> None:
            if server.closes_early and self.command == "PUT":
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.title(): value for name, value in self.headers.items()}
            request = Request(self.path, 0, 0, headers, self.command, body)
            with server.lock:
                server.requests.append(request)
                answer = server.write(request)
            answer.headers.setdefault("Content-Length", str(len(answer.body)))
            time.sleep(answer.delay)
            if answer.lost:
                self.close_connection = True
                return
            with contextlib.suppress(OSError):
                self._send(answer)

        def do_POST(self) -> None:
            self.do_PUT()

        def do_DELETE(self) -> None:
            self.do_PUT()

        def do_HEAD(self) -> None:
            self.do_PUT()

        def _send(self, answer: Answer) -> None:
            if self.command == "HEAD":
                answer.cut = None
                answer.body = b""
            head = f"HTTP/1.1 {answer.status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in answer.headers.items())
            self.wfile.write(head.encode("latin-1") + b"\r\n" + (b"" if answer.drip else answer.body[: answer.cut]))
            for start in range(0, len(answer.body) if answer.drip else 0, answer.drop):
                time.sleep(30 if start == answer.stall else answer.drip)
                self.wfile.write(answer.body[start : start + answer.drop])
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


def refusal(code: int, name: str) -> Fault:
    body = f"<Error><Code>{name}</Code><Message>Not now</Message></Error>".encode()
    return lambda _, answer: answer.__dict__.update(status=code, body=body)


def reset_after(count: int) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        answer.cut = count

    return change


def lost(request: Request, answer: Answer) -> None:
    """Do what is asked for, and do not answer."""
    answer.lost = True


def not_done(request: Request, answer: Answer) -> None:
    """Neither do what is asked for nor answer."""
    answer.lost, answer.status = True, 500


def late(seconds: float) -> Fault:
    def change(request: Request, answer: Answer) -> None:
        answer.delay = seconds

    return change


def dripping(seconds: float, size: int = 1, stall: int = -1) -> Fault:
    """Have bytes come slowly: a piece of so many after each pause. stall: where nothing comes for 30 seconds."""

    def change(request: Request, answer: Answer) -> None:
        answer.drip, answer.drop, answer.stall = seconds, size, stall

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
