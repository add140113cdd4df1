"""Files that belong to an object and do not exist: checksums and tables, on servers that do not say so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import object_server
import pytest
from object_server import ObjectServer

import fffs
from fffs import ofrecord
from fffs.errors import AccessError, ChecksumError, FffsError, MetadataError, ReadError
from fffs.granular import BagReader, BagWriter

RECORDS = [bytes([k]) * (k * 7 + 1) for k in range(50)]
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
PAGE = b"<!DOCTYPE html><html>There is nothing here. Log in!</html>"


def fill(server: ObjectServer, folder: Path, layout: str = "v1") -> None:
    """Store an OFRecord file and a Bag, without checksums."""
    with ofrecord.OFRecordWriter(folder / "part-0") as part:
        for record in RECORDS:
            part.write_one(record)
    with BagWriter(folder / "x.bag", layout=layout) as bag:
        for record in RECORDS:
            bag.append(record)
    for name in ("part-0", "x.bag"):
        server.put(name, (folder / name).read_bytes())


def login(request: Any, answer: object_server.Answer) -> None:
    """Answer with a page, which has no ranges, where others lead to."""
    if request.path.startswith("/login"):
        answer.status, answer.body, answer.headers = 200, PAGE, {"Content-Length": str(len(PAGE))}


def in_place_of_404(status: int, body: bytes, **headers: str) -> Callable[[Any, object_server.Answer], None]:
    """Return what answers so for each name that does not exist."""

    def change(request: Any, answer: object_server.Answer) -> None:
        login(request, answer)
        if answer.status == 404:
            answer.status, answer.body = status, body
            answer.headers = {"Content-Length": str(len(body)), **{k.replace("_", "-"): v for k, v in headers.items()}}

    return change


ANSWERS = {
    "no right to list": in_place_of_404(403, DENIED),
    "a server that says no more": in_place_of_404(403, b"<html>Forbidden</html>"),
    "a page": in_place_of_404(200, PAGE),
    "a way to a page": in_place_of_404(302, b"", Location="/login?then=there"),
    "a page, also in ranges": in_place_of_404(206, PAGE, Content_Range=f"bytes 0-{len(PAGE) - 1}/{len(PAGE)}"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_checksums_and_tables_that_do_not_exist(server: ObjectServer, tmp_path: Path, answer: str) -> None:
    fill(server, tmp_path)
    server.always = ANSWERS[answer]
    with fffs.open(f"{server.url}/part-0", format="ofrecord") as reader:
        assert [bytes(record) for record in reader] == RECORDS
    with fffs.open(f"{server.url}/x.bag") as reader:
        assert [bytes(record) for record in reader] == RECORDS


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_exists_is_still_used(server: ObjectServer, tmp_path: Path, answer: str) -> None:
    fill(server, tmp_path, "v3")
    subprocess.run([sys.executable, "-m", "fffs", "verify", "--keep", tmp_path / "part-0"], check=True, timeout=60)
    for name in ("part-0.fffs-crc", "x.idx"):
        server.put(name, (tmp_path / name).read_bytes())
    server.always = ANSWERS[answer]
    server.put("part-0", (tmp_path / "part-0").read_bytes().replace(RECORDS[3], RECORDS[3][:-1] + b"?"))
    with fffs.open(f"{server.url}/part-0", format="ofrecord") as reader, pytest.raises(ChecksumError):
        reader.read([3])
    with fffs.open(f"{server.url}/x.bag") as reader:
        assert [bytes(record) for record in reader] == RECORDS
    data = bytearray(server.objects["/part-0.fffs-crc"])
    data[-6] ^= 1
    server.put("part-0.fffs-crc", bytes(data))
    with pytest.raises(MetadataError, match=r"part-0.fffs-crc: damaged"):
        fffs.open(f"{server.url}/part-0", format="ofrecord")


def test_a_table_that_is_needed_is_named(server: ObjectServer, tmp_path: Path) -> None:
    fill(server, tmp_path, "v3")
    server.always = ANSWERS["no right to list"]
    with pytest.raises(MetadataError, match=r"/x.idx and .*/limits.x.bag do not exist, or may not be read"):
        fffs.open(f"{server.url}/x.bag")
    with pytest.raises(MetadataError, match="its table is missing, or may not be read"):
        BagReader(f"{server.url}/x.bag", layout="v3")


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidAccessKeyId"])
def test_other_refusals_are_errors(server: ObjectServer, tmp_path: Path, code: str) -> None:
    fill(server, tmp_path)
    server.always = in_place_of_404(403, DENIED.replace(b"AccessDenied", code.encode()))
    with pytest.raises(AccessError, match=rf"part-0.fffs-crc: no access: HTTP status 403, {code}"):
        fffs.open(f"{server.url}/part-0", format="ofrecord")


@pytest.mark.parametrize("answer", ["no right to list", "a page"])
def test_what_was_asked_for_is_an_error(server: ObjectServer, tmp_path: Path, answer: str) -> None:
    server.always = ANSWERS[answer]
    with pytest.raises(FffsError) as raised:
        fffs.open(f"{server.url}/part-0", format="ofrecord")
    assert isinstance(raised.value, (AccessError, ReadError))


def whole(request: Any, answer: object_server.Answer) -> None:
    """As of a server that knows no ranges of small files."""
    if answer.status == 206 and request.path.endswith(".fffs-crc"):
        answer.status = 200
        del answer.headers["Content-Range"]


def refused(request: Any, answer: object_server.Answer) -> None:
    """As of a server that knows no ranges behind the end of a file."""
    if "Range" not in request.headers:
        whole(request, answer)
    elif answer.status == 206 and request.path.endswith(".fffs-crc"):
        answer.status, answer.body, answer.headers = 416, b"", {"Content-Length": "0"}


@pytest.mark.parametrize("damage", ["empty", "cut", "magic", whole, refused])
def test_a_sidecar_of_a_web_server_that_cannot_be_used_is_an_error(
    server: ObjectServer, tmp_path: Path, damage: Any
) -> None:
    """It is no page: bytes that it would show to be wrong must not be read without it."""
    fill(server, tmp_path)
    subprocess.run([sys.executable, "-m", "fffs", "verify", "--keep", tmp_path / "part-0"], check=True, timeout=60)
    data = (tmp_path / "part-0.fffs-crc").read_bytes()
    changed = {"empty": b"", "cut": data[:4], "magic": b"X" + data[1:]}
    server.put("part-0.fffs-crc", changed.get(damage, data))
    server.always = None if damage in changed else damage
    with pytest.raises((MetadataError, ReadError), match=r"part-0\.fffs-crc: "):
        fffs.open(f"{server.url}/part-0", format="ofrecord")


@pytest.mark.parametrize(
    "location", ["/moved", "http://[::1", "http://127.0.0.1:1/\xe9", "ftp://127.0.0.1/x", "//:99999999/"]
)
def test_a_sidecar_that_was_moved_is_no_page(server: ObjectServer, tmp_path: Path, location: str) -> None:
    """To where there are no ranges of it, or to where it cannot be."""
    fill(server, tmp_path)
    moved = in_place_of_404(302, b"", Location=location)

    def change(request: Any, answer: object_server.Answer) -> None:
        if request.path == "/moved":
            answer.status, answer.body, answer.headers = 200, b"FFFS" * 99, {"Content-Length": "396"}
        moved(request, answer)

    server.always = change
    with pytest.raises((MetadataError, ReadError), match=r"part-0\.fffs-crc: "):
        fffs.open(f"{server.url}/part-0", format="ofrecord")
