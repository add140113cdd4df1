"""Records in objects that are read over HTTP: the right bytes or one error, whatever the server does."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import object_server
import pytest
from engine_model import fault
from inside import SignedUrl, ffi, lib, load_source, object_access, object_remote, verify
from mounting import wait_until
from object_server import ObjectServer, dripping, flip, good, header, late, reset_after, serving, status
from weed import clear_environment

import fffs
from fffs import ofrecord, tfrecord
from fffs.errors import (
    AccessError,
    ChecksumError,
    FffsError,
    ReadError,
    SourceChangedError,
    SourceNotFoundError,
    UsageError,
)

RECORDS = [os.urandom(size) for size in (0, 1, 700, 5_000, 70_000, 112_000, 3, 3_000_000, 12)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "1")


@pytest.fixture(scope="module")
def records_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("objects") / "r.ffr"
    with fffs.FileWriter(path, len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)
    return path.read_bytes()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("packed")
    for k in range(300):
        path = folder / "src" / f"d{k % 7}" / f"f{k}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k % 256]) * (k * 37 % 2000))
    fffs.pack_folder(folder / "src", folder / "p.ffr")
    return (folder / "p.ffr").read_bytes()


def _same(records: list[np.ndarray], numbers: list[int]) -> bool:
    return [bytes(record) for record in records] == [RECORDS[k] for k in numbers]


# ---------------------------------------------------------------- what is read


def test_records_in_any_order_and_repeated(server: ObjectServer, records_file: bytes) -> None:
    numbers = [7, 0, 8, 4, 4, 7, 1, 2, 3, 5, 6]
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        assert reader.n == len(RECORDS)
        assert _same(reader.read(numbers), numbers)
        assert bytes(reader.read_one(5)) == RECORDS[5]
        assert all(request.headers.get("If-Match") for request in server.requests[1:])


def test_neighbours_are_one_request(server: ObjectServer, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        server.requests.clear()
        assert _same(reader.read([4, 5, 6]), [4, 5, 6])
        assert len(server.requests) == 1


def test_frames_do_not_separate_tiny_neighbours(server: ObjectServer, tmp_path: Path) -> None:
    with tfrecord.TFRecordWriter(tmp_path / "t.tfrecord") as writer:
        for k in range(1000):
            writer.write_one(b"%03d" % k)
    with fffs.FileReader(server.put("t.tfrecord", (tmp_path / "t.tfrecord").read_bytes())) as reader:
        server.requests.clear()
        assert [bytes(record) for record in reader.read(range(1000))] == [b"%03d" % k for k in range(1000)]
        assert len(server.requests) == 1


def test_gaps_that_cost_more_than_a_request_are_not_read(server: ObjectServer, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "g.ffr", 2000) as writer:
        for k in range(2000):
            writer.write_one(bytes([k % 256]) * 1000)
    with fffs.FileReader(server.put("g.ffr", (tmp_path / "g.ffr").read_bytes())) as reader:
        server.requests.clear()
        numbers = list(range(200, 2000, 9))
        assert [bytes(r) for r in reader.read(numbers)] == [bytes([k % 256]) * 1000 for k in numbers]
        assert sum(r.end - r.start for r in server.requests) <= 1.15 * 1000 * len(numbers)


def test_opening_a_pack_takes_four_requests(server: ObjectServer, packed: bytes) -> None:
    with fffs.PackedFolder(server.put("p.ffr", packed)) as folder:
        assert len(server.requests) <= 4
        assert bytes(folder.read_one("d3/f10")) == bytes([10]) * 370


def test_every_format(server: ObjectServer, tmp_path: Path) -> None:
    with tfrecord.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in RECORDS:
            writer.write_one(record)
    for k in range(2):
        with ofrecord.OFRecordWriter(tmp_path / f"part-{k}", allow_empty=True) as part:
            for record in RECORDS:
                part.write_one(record)
    urls = [server.put(name, (tmp_path / name).read_bytes()) for name in ("a.tfrecord", "part-0", "part-1")]
    for source in (urls[0], urls[1:]):
        with fffs.FileReader(source) as reader:
            numbers = list(range(len(RECORDS)))
            assert _same(reader.read(range(len(RECORDS))), numbers)
            assert _same([reader.read_one(k) for k in numbers], numbers)


@pytest.mark.parametrize("code", [200, 206, 416])
def test_an_answer_without_a_body_is_an_error_at_once(server: ObjectServer, code: int) -> None:
    """Some servers know no ranges of an empty object. It is not repeated until the deadline, which is a minute here."""

    def empty(request: object_server.Request, answer: object_server.Answer) -> None:
        answer.status, answer.body, answer.headers = code, b"", {"Content-Length": "0"}

    url, begin = server.put("r.ffr", b""), time.monotonic()
    server.always = empty
    with pytest.raises(FffsError) as raised:
        fffs.FileReader(url)
    assert url in str(raised.value)
    assert not isinstance(raised.value, SourceChangedError)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("allows", ["nothing", "no end behind the object"])
@pytest.mark.parametrize("kind", ["empty", "small"])
def test_an_object_whose_ranges_are_refused_is_empty_only_if_the_server_says_so(
    server: ObjectServer, tmp_path: Path, allows: str, kind: str
) -> None:
    """As of servers that refuse ranges without saying how much there is."""
    with tfrecord.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_one(RECORDS[2])
    content = (tmp_path / "a.tfrecord").read_bytes() if kind == "small" else b""

    def refuse(request: object_server.Request, answer: object_server.Answer) -> None:
        if "Range" not in request.headers:
            answer.status, answer.body, answer.headers = 200, content, {"Content-Length": str(len(content))}
        elif allows == "nothing" or request.end > len(content):
            answer.status, answer.body, answer.headers = 416, b"no", {"Content-Length": "2"}

    url, begin = server.put("a.tfrecord", content), time.monotonic()
    server.always = refuse
    if kind == "empty":
        with fffs.open(url) as reader:
            assert reader.n == 0
    else:
        with pytest.raises(ReadError, match=r"a.tfrecord: cannot read: the server does not support reading ranges"):
            fffs.open(url)
    assert len(server.requests) == 2
    assert time.monotonic() - begin < 5


def test_a_server_that_refuses_all_ranges_and_all_else_has_no_empty_objects(server: ObjectServer) -> None:
    url = server.put("a.tfrecord", b"")
    server.always = status(416, Content_Range="")
    with pytest.raises(ReadError, match="does not support reading ranges"):
        fffs.open(url)
    assert len(server.requests) == 2


def test_an_empty_object_is_an_error_not_a_crash(server: ObjectServer) -> None:
    with pytest.raises(FffsError, match="too few"):
        fffs.FileReader(server.put("e.ffr", b""))


def test_commands(server: ObjectServer, packed: bytes, tmp_path: Path) -> None:
    url = server.put("p.ffr", packed)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fffs", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "f10" in run("ls", "-R", url) or "d3" in run("ls", url)
    assert run("cat", url, "d3/f10") == chr(10) * 370
    assert "packed folder" in run("info", url)
    assert "ok: 301 records" in run("verify", url)
    run("unpack", url, str(tmp_path / "out"))
    assert (tmp_path / "out/d3/f10").read_bytes() == bytes([10]) * 370


# ---------------------------------------------------------------- what the server does wrong


@pytest.mark.parametrize(
    "fault",
    [
        *(status(500), status(503), status(503, Retry_After="0"), status(429), status(408), late(0.3), reset_after(0)),
        header("Content-Encoding", "aws-chunked"),  # how it was sent to the store
    ],
)
def test_faults_that_pass(server: ObjectServer, fault: object, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        server.faults = [good, fault, fault]  # type: ignore[list-item]
        assert _same(reader.read(range(len(RECORDS))), list(range(len(RECORDS))))


def test_a_server_that_wants_a_longer_pause_than_the_deadline_is_asked_again(
    server: ObjectServer, impatient: None, records_file: bytes
) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        server.faults = [status(503, Retry_After="7200")]
        assert _same(reader.read([3]), [3])
        server.always, begin = status(503, Retry_After="7200"), time.monotonic()
        with pytest.raises(ReadError, match="503"):
            reader.read([4])
        assert 0.9 < time.monotonic() - begin < 5


HEAD = 'HTTP/1.1 206 x\nContent-Encoding: gzip\nContent-Range: bytes 0-9/100\nETag: "a"\nContent-Length: 10\n'


@pytest.mark.parametrize(
    ("lines", "code", "good"),
    [
        (HEAD, 206, True),
        (HEAD.replace("gzip", "aws-chunked,gzip"), 206, True),
        (HEAD.replace("Content-Length: 10\n", ""), 206, False),  # it was compressed when it was sent
        (HEAD.replace("Content-Length: 10", "Content-Length: 7"), 206, False),
        (HEAD.replace('"a"', 'W/"a"'), 206, False),
        (HEAD.replace('ETag: "a"\n', ""), 206, False),
        (HEAD.replace("0-9/100", "0-9/*"), 206, False),
        (HEAD.replace("Content-Range: bytes 0-9/100\n", ""), 206, False),
        (HEAD.replace("Content-Range: bytes 0-9/100\n", ""), 200, False),
    ],
)
@pytest.mark.parametrize(("etag", "size"), [("", -1), ('"a"', 100)])
def test_an_encoding_that_was_stored_with_the_bytes(lines: str, code: int, good: bool, etag: str, size: int) -> None:
    told = ffi.new("int64_t *")
    for stored in (True, False):
        found = lib.fffs_answer_test(lines.encode(), code, etag.encode(), b"", size, stored, 0, 10, told)
        assert found == (0 if good and stored else -errno.EPROTO)


@pytest.fixture
def s3(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the server be that of S3, without signatures."""
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")


@pytest.mark.usefixtures("s3")
def test_an_object_of_s3_with_an_encoding_is_read_as_it_is_stored(server: ObjectServer, records_file: bytes) -> None:
    url = server.put("b/r.ffr", records_file)
    server.always = header("Content-Encoding", "gzip")
    with fffs.FileReader("s3://b/r.ffr") as reader:
        assert _same(reader.read([5, 4]), [5, 4])
    with pytest.raises(ReadError, match="the server changed the encoding of the bytes"):
        fffs.FileReader(url)


@pytest.mark.usefixtures("s3")
def test_an_object_that_google_would_decompress_is_read_as_it_is_stored(
    server: ObjectServer, records_file: bytes
) -> None:
    """https://cloud.google.com/storage/docs/transcoding"""

    def transcode(request: object_server.Request, answer: object_server.Answer) -> None:
        answer.headers["X-Goog-Stored-Content-Encoding"] = "gzip"
        if request.headers.get("Accept-Encoding") == "gzip":
            answer.headers["Content-Encoding"] = "gzip"
        else:
            answer.status, answer.body = 200, b"the content" * 9999
            answer.headers["Content-Length"] = str(len(answer.body))
            del answer.headers["Content-Range"]

    url = server.put("b/r.ffr", records_file)
    server.always = transcode
    with fffs.FileReader("s3://b/r.ffr") as reader:
        assert _same(reader.read([5, 4]), [5, 4])
        server.requests.clear()
        assert _same(reader.read([7, 3]), [7, 3])
    assert {request.headers["Accept-Encoding"] for request in server.requests} == {"gzip"}
    server.requests.clear()
    with pytest.raises(ReadError, match="does not support reading ranges"):
        fffs.FileReader(url)
    assert {request.headers["Accept-Encoding"] for request in server.requests} == {"identity"}


def test_another_etag_is_a_change(server: ObjectServer, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        server.always = header("ETag", '"x"')
        with pytest.raises(SourceChangedError, match="replaced"):
            reader.read([5])


def test_reset_after_each_byte_of_a_small_object(server: ObjectServer, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "s.ffr", 3) as writer:
        for k in range(3):
            writer.write_one(bytes([k]) * 40)
    data = (tmp_path / "s.ffr").read_bytes()
    url = server.put("s.ffr", data)
    for k in range(0, len(data) + 1, 7):  # of the first answer, and then of the one for the rest
        server.faults = [reset_after(k), reset_after(max(k - 1, 0))]
        with fffs.FileReader(url) as reader:
            assert [bytes(r) for r in reader.read([2, 0])] == [b"\2" * 40, b"\0" * 40]


def test_reset_in_the_middle_goes_on_where_it_stopped(server: ObjectServer, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        server.requests.clear()
        server.faults = [reset_after(2_000_000)]
        assert _same(reader.read([7]), [7])
        assert sum(r.end - r.start for r in server.requests) < 3_000_000 + 1_100_000


@pytest.mark.parametrize("code", [400, 401, 403])
def test_refused_access_is_one_line(server: ObjectServer, code: int, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    server.always = status(code)
    with pytest.raises(FffsError) as raised:
        fffs.FileReader(url)
    assert "\n" not in str(raised.value)
    assert "r.ffr" in str(raised.value)
    assert len(server.requests) <= 2


def test_a_server_that_repeats_a_signed_address_does_not_put_it_into_messages(
    server: ObjectServer, records_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very/secret+key")
    url = server.put("r.ffr?X-Amz-Date=1&X-Amz-Signature=5197", records_file)

    def repeat(request: object_server.Request, answer: object_server.Answer) -> None:
        text = (
            f"I don&#39;t take http://x{request.path.replace('&', '&amp;')} nor X-Amz-Signature=5197 of very/secret+key"
        )
        answer.status, answer.body = 403, f"<Error><Code>No</Code><Message>{text}</Message></Error>".encode()
        answer.headers = {"Content-Length": str(len(answer.body))}

    server.always = repeat
    with pytest.raises(AccessError, match=r"403, No: I don't take http://x/r.ffr\?… nor … of …; check") as raised:
        fffs.FileReader(url)
    assert "5197" not in str(raised.value)


def test_a_missing_object(server: ObjectServer) -> None:
    with pytest.raises(SourceNotFoundError, match="no such object"):
        fffs.FileReader(f"{server.url}/none.ffr")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fault",
    [
        status(500),
        status(404 + 300),  # no status of HTTP
        status(200),  # no ranges
        header("Content-Range", None),
        header("Content-Range", "bytes 1-9/99999999"),
        header("Content-Encoding", "gzip"),
        header("Content-Length", "7"),
        reset_after(0),
        late(3),
        dripping(0.05),
    ],
)
def test_faults_that_stay_are_errors_in_time(
    server: ObjectServer, impatient: None, fault: object, records_file: bytes
) -> None:
    reader = fffs.FileReader(server.put("r.ffr", records_file))
    server.always = fault  # type: ignore[assignment]
    begin = time.monotonic()
    with reader, pytest.raises((ReadError, SourceChangedError)) as raised:
        reader.read([5])
    assert time.monotonic() - begin < 8
    assert "\n" not in str(raised.value)


def test_a_redirection_that_expires(server: ObjectServer, records_file: bytes) -> None:
    """As of sites that lead to a signed URL, valid for an hour. The site has another version than the object."""
    url = server.put("r.ffr", b"the site's own page")
    for k in range(3):
        server.put(f"signed-{k}", records_file)
    valid = 0

    def site(request: object_server.Request, answer: object_server.Answer) -> None:
        if request.path == "/r.ffr" and answer.status != 412:
            answer.status, answer.body = 302, b""
            answer.headers = {"Location": f"{server.url}/signed-{valid}", "Content-Length": "0"}
        elif request.path != f"/signed-{valid}":
            status(403)(request, answer)

    server.always = site
    with fffs.FileReader(url) as reader:
        for code in range(3):
            valid = code
            assert _same(reader.read([4, 5, 7]), [4, 5, 7])
            asked = len([request for request in server.requests if request.path == "/r.ffr"])
            assert _same(reader.read([5]), [5])
            assert len([request for request in server.requests if request.path == "/r.ffr"]) == asked
        valid = 7
        with pytest.raises(SourceNotFoundError):
            reader.read([5])


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]"])
def test_plain_http_leads_to_no_other_machine(
    server: ObjectServer, records_file: bytes, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)

    def redirect(request: object_server.Request, answer: object_server.Answer) -> None:
        answer.status, answer.body = 302, b""
        answer.headers = {"Location": f"http://{host}/r.ffr", "Content-Length": "0"}

    url = server.put("r.ffr", records_file)
    server.always = redirect
    with pytest.raises(ReadError, match=r"without encryption; AWS_ALLOW_HTTP=true"):
        fffs.FileReader(url)


def test_a_body_that_is_longer_than_announced(server: ObjectServer, impatient: None, records_file: bytes) -> None:
    def longer(request: object_server.Request, answer: object_server.Answer) -> None:
        answer.body += bytes(100_000)
        answer.headers["Transfer-Encoding"] = "chunked"
        answer.headers.pop("Content-Length")
        answer.body = b"%x\r\n" % len(answer.body) + answer.body + b"\r\n0\r\n\r\n"

    reader = fffs.FileReader(server.put("r.ffr", records_file))
    server.always = longer
    with reader, pytest.raises(ReadError, match="more bytes"):
        reader.read([5])


@pytest.mark.parametrize("lines", [(b"X: " + b"x" * 1000 + b"\r\n") * 4000, b"X: " + b"x" * 1_000_000 + b"\r\n"])
def test_header_lines_without_end(impatient: None, lines: bytes) -> None:
    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 206 x\r\n" + lines)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(ReadError, match="header"):
            fffs.FileReader(f"http://127.0.0.1:{listener.getsockname()[1]}/r.ffr")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("allowed", ["", "true"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("variable", ["", "no_proxy", "NO_PROXY"])
def test_this_machine_is_not_asked_through_a_proxy(
    server: ObjectServer,
    impatient: None,
    records_file: bytes,
    monkeypatch: pytest.MonkeyPatch,
    allowed: str,
    host: str,
    variable: str,
) -> None:
    """Which would get an address that gives access, without encryption, and ask another machine."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
        if variable:
            monkeypatch.setenv(variable, "direct.example")
        with fffs.FileReader(server.put("r.ffr", records_file).replace("127.0.0.1", host)) as reader:
            assert _same(reader.read([5]), [5])
        assert not proxy.requests
        if allowed and host == "localhost":
            for other, asks in (("other.example", True), ("direct.example", not variable)):
                proxy.requests.clear()
                with pytest.raises(FffsError):
                    fffs.open(f"http://{other}/r.ffr")
                assert bool(proxy.requests) == asks


def test_a_wrong_byte_is_fetched_once_more(server: ObjectServer, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        server.faults = [flip(1000)]
        assert _same(reader.read([5, 4]), [5, 4])
        server.always = flip(1000)
        with pytest.raises(ChecksumError, match="record 5"):
            reader.read([5])
        server.always = None
        assert _same(reader.read([5]), [5])


@pytest.mark.parametrize("size", [600_000, 3_000_000], ids=["record", "blocks"])
def test_a_range_that_is_fetched_again_is_compared_with_what_was_verified(
    server: ObjectServer, tmp_path: Path, size: int
) -> None:
    """The checksum covers all of the record. Another range of it costs little, but is not just believed."""
    content = random.Random(size).randbytes(size)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    url = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    with fffs.FileReader(url) as reader:
        assert bytes(reader.read_range(0, 5000, 6000)) == content[5000:6000]
        assert bytes(reader.read_range(0, 2000, 3000)) == content[2000:3000]
        server.faults = [flip(k) for k in range(500)]
        with pytest.raises(ChecksumError):
            reader.read_range(0, 5000, 6000)
        server.faults = [flip(1000)]
        assert bytes(reader.read_range(0, 5000, 6000)) == content[5000:6000]
        server.requests.clear()
        assert bytes(reader.read_range(0, 30_000, 30_100)) == content[30_000:30_100]
        [request] = server.requests
        assert request.end - request.start <= 16384


def test_a_replaced_object_never_gives_a_mixture(server: ObjectServer, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    with fffs.FileReader(url) as reader:
        server.put("r.ffr", records_file[:-1] + b"?")
        with pytest.raises(SourceChangedError):
            reader.read([4, 5, 7])
    del server.objects["/r.ffr"]
    with fffs.FileReader(server.put("q.ffr", records_file)) as reader:
        del server.objects["/q.ffr"]
        with pytest.raises(SourceNotFoundError):
            reader.read([5])


def test_a_server_that_is_started_again(records_file: bytes) -> None:
    with serving() as first:
        reader = fffs.FileReader(first.put("r.ffr", records_file))
        port = int(first.url.rsplit(":", 1)[1])
        assert _same(reader.read([5]), [5])
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(_same(reader.read([7, 4]), [7, 4])))
    thread.start()
    time.sleep(0.5)
    with serving(port, objects=first.objects):
        thread.join(30)
    assert results == [True]
    reader.close()


def test_the_deadline_is_checked() -> None:
    for value in ("0", "x", "-3", "1e9"):
        code = (
            f"import os; os.environ['FFFS_DEADLINE'] = {value!r}; import fffs; fffs.FileReader('http://127.0.0.1:9/x')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "FFFS_DEADLINE" in done.stderr


# ---------------------------------------------------------------- processes and threads


def test_fork_before_between_and_after_reads(server: ObjectServer, records_file: bytes) -> None:
    reader = fffs.FileReader(server.put("r.ffr", records_file))
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork with threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                with fffs.FileReader(f"{server.url}/r.ffr") as other:
                    if _same(other.read([7, 5, 0]), [7, 5, 0]) and _same(reader.read([5, 4]), [5, 4]):
                        code = 0
            finally:
                os._exit(code)
        assert _same(reader.read([4, 7]), [4, 7])
        assert os.waitpid(child, 0)[1] == 0
        assert _same(reader.read([1, 7]), [1, 7])
    reader.close()


def test_threads(server: ObjectServer, records_file: bytes) -> None:
    failures: list[object] = []
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:

        def work(seed: int) -> None:
            numbers = np.random.default_rng(seed).integers(0, len(RECORDS), 5).tolist()
            for _ in range(10):
                if not _same(reader.read(numbers), numbers):
                    failures.append(numbers)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_connections_are_kept(server: ObjectServer, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        for _ in range(20):
            reader.read([4])
    assert server.connections <= 2


def test_a_pickled_reader_opens_the_object_again(server: ObjectServer, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        copy = pickle.loads(pickle.dumps(reader))
        assert _same(copy.read([5]), [5])
        copy.close()


def test_ctrl_c_ends_a_read_that_waits(server: ObjectServer, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    code = f"import fffs\nr = fffs.FileReader({url!r})\nprint('ready', flush=True)\nr.read([5])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    server.always = None
    assert process.stdout.readline() == "ready\n"
    server.always = late(5)
    time.sleep(0.3)
    begin = time.monotonic()
    process.send_signal(2)
    _, error = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in error
    assert time.monotonic() - begin < 3


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("url", ["http://example.com/x.ffr", "https://user:secret@example.com/x.ffr", "s3:///x"])
def test_names_that_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        fffs.FileReader(url)
    assert "secret" not in str(raised.value)


# ---------------------------------------------------------------- access that is refused


@pytest.fixture
def guarded(server: ObjectServer, records_file: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """An object that only the last of a list of signatures opens, and the list."""
    url, valid = server.put("r.ffr", records_file), ["a"]

    def check(request: object_server.Request, answer: object_server.Answer) -> None:
        if not request.path.endswith(f"?signature={valid[-1]}"):
            status(403)(request, answer)

    def answer(request: object_server.Request) -> object_server.Answer:
        plain = request.path.partition("?")[0]
        return type(server).answer(server, dataclasses.replace(request, path=plain))

    def sign(name: object) -> SignedUrl:
        return SignedUrl(f"{url}?signature={valid[-1]}", time.monotonic() + 1000)

    monkeypatch.setattr(server, "answer", answer)
    monkeypatch.setattr(object_remote.client, "sign", sign)
    server.always = check
    return url, valid


def test_a_reader_signs_again_when_access_is_refused(guarded: tuple[str, list[str]]) -> None:
    url, valid = guarded
    with fffs.FileReader(url) as reader:
        valid.append("b")
        assert _same(reader.read([4, 5]), [4, 5])


@pytest.mark.parametrize("native", [False, True])
def test_what_the_store_refuses_after_another_thread_signed_is_asked_for_again(
    guarded: tuple[str, list[str]], server: ObjectServer, native: bool
) -> None:
    """Nothing says which signature is refused but that of the request."""
    url, valid = guarded
    check, released = server.always, threading.Event()
    assert check is not None

    def hold_refusals(request: object_server.Request, answer: object_server.Answer) -> None:
        check(request, answer)
        answer.hold = released if answer.status == 403 else None

    with fffs.FileReader(url) as reader, ThreadPoolExecutor(1) as pool:
        file = reader.store.files[0].file
        if native:  # in a mount
            file.await_access()
        valid.append("b")
        server.always = hold_refusals
        asked = len(server.requests)
        result = pool.submit(_read_natively, reader, 4) if native else pool.submit(reader.read_one, 4)
        wait_until(lambda: len(server.requests) > asked)
        file.renew_access(float("inf"))  # the same for another thread
        released.set()
        assert bytes(result.result()) == RECORDS[4]


def test_a_signature_that_cannot_be_renewed_costs_only_what_is_not_cached(
    guarded: tuple[str, list[str]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, valid = guarded

    def sign(name: object) -> SignedUrl:
        if valid == ["a"]:
            return SignedUrl(f"{url}?signature=a", time.monotonic())  # it expires at once
        raise AccessError("no credentials")

    monkeypatch.setattr(object_remote.client, "sign", sign)
    with fffs.FileReader(url) as reader:
        assert _same(reader.read([4]), [4])
        valid.append("b")
        assert _same(reader.read([4]), [4])
        with pytest.raises(AccessError, match=r"^no credentials$"):
            reader.read([4, 7])
        assert _same(reader.read([4]), [4])
        valid.remove("b")
        assert _same(reader.read([4, 7]), [4, 7])


def test_a_service_of_credentials_that_hangs_is_waited_for_once_and_not_for_what_is_cached(
    guarded: tuple[str, list[str]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, valid = guarded
    now, asked, seconds = [1.0], [0], 0.0

    def sign(name: object) -> SignedUrl:
        asked[0] += 1
        now[0] += seconds
        if seconds:
            raise ReadError(None, url, "asking the store process")
        return SignedUrl(f"{url}?signature={valid[-1]}", 2.0)

    monkeypatch.setattr(object_remote.client, "sign", sign)
    monkeypatch.setattr(object_access, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with fffs.FileReader(url) as reader, fffs.FileReader(url) as other:
        assert _same(reader.read([3, 4]), [3, 4])
        now[0], asked[0], seconds = 1000.0, 0, 60.0
        assert _same(reader.read([3]), [3])
        assert _same(other.read([4, 3]), [4, 3])  # it does not know yet that they are cached
        assert not asked[0]
        for record in (2, 7):  # the old signature is still good
            assert _same(reader.read([record]), [record])
        assert asked[0] == 1
        valid.append("b")
        for _ in range(2):
            with pytest.raises(AccessError, match="asking the store process"):
                reader.read([8, 5])
        assert asked[0] == 1
        now[0], seconds = now[0] + 31, 0.0
        assert _same(reader.read([5]), [5])
        assert asked[0] == 2


def _read_natively(reader: fffs.FileReader, record: int) -> bytes:
    return bytes(reader.read_range(record, 0, len(RECORDS[record])))


def test_native_reads_wait_for_a_new_signature(guarded: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a mount, whose threads cannot sign: its event loop sees that access is refused, and renews it."""
    url, valid = guarded
    with fffs.FileReader(url) as reader, fault(lib.FFFS_FAULT_CLOCK, 1, 1 << 40, 11):
        file = reader.store.files[0].file
        file.await_access()
        valid.append("b")
        results: list[bytes] = []
        thread = threading.Thread(target=lambda: results.append(_read_natively(reader, 4)))
        thread.start()
        wait_until(lambda: file.access_refused)
        assert not results
        file.renew_access(float("inf"))
        thread.join(30)
    assert results == [RECORDS[4]]


def test_native_reads_fail_if_the_new_signature_is_refused_as_well(guarded: tuple[str, list[str]]) -> None:
    url, valid = guarded
    with fffs.FileReader(url) as reader:
        file = reader.store.files[0].file
        file.await_access()
        file.renew_access(float("inf"))  # it is new from now on
        valid += ["b", "c"]
        with pytest.raises(AccessError):
            _read_natively(reader, 4)


def test_verifying_tells_a_store_that_fails_from_damage(
    server: ObjectServer, records_file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    url = server.put("r.ffr", records_file)
    with load_source(url) as source:
        server.always = status(503)
        with pytest.raises(ReadError, match="503"):
            verify(source)
        server.always = None
        assert verify(source) == []
