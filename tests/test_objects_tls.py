"""Objects over HTTPS: a certificate that is not accepted is one error, at once, that says what to do."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from connect_proxy import ConnectProxy, proxying
from inside import Sender, aws_profile, ffi, http_settings, list_objects, object_client, parse_url
from mounting import wait_until
from object_server import Answer, ObjectServer, Request, serving
from weed import clear_environment

import fffs
import fffs.mount
from fffs.errors import ReadError, UsageError

if not shutil.which("openssl"):
    pytest.fail("these tests need openssl", pytrace=False)

RECORDS = [bytes([k]) * 1000 for k in range(10)]


def _certificate(folder: Path, name: str, *options: str) -> Path:
    """Make a certificate that signs itself, and its key, in one file."""
    path = folder / "certificate"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", *options]
    subprocess.run([*command, "-keyout", folder / "key", "-out", path], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (folder / "key").read_bytes())
    return path


def _context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


GOOD = ("-days", "2", "-addext", "subjectAltName=IP:127.0.0.1")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _certificate(tmp_path_factory.mktemp("good"), "localhost", *GOOD)


@pytest.fixture
def server(good: Path) -> Iterator[ObjectServer]:
    with serving(tls=_context(good)) as found:
        yield found


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch, good: Path) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(good))


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    with fffs.FileWriter(tmp_path / "r.ffr", len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)
    return (tmp_path / "r.ffr").read_bytes()


def _read(url: str) -> list[bytes]:
    with fffs.FileReader(url) as reader:
        return [bytes(record) for record in reader.read(range(reader.n))]


def test_a_server_whose_certificate_is_trusted(server: ObjectServer, trust: None, content: bytes) -> None:
    assert _read(server.put("r.ffr", content)) == RECORDS


def test_an_unknown_authority(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    for name in ("SSL_CERT_FILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    url = server.put("r.ffr", content)
    with pytest.raises(ReadError, match=r"certificate is not accepted: .*; set SSL_CERT_FILE") as raised:
        _read(url)
    assert url in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not server.requests


def test_a_certificate_of_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    other = _certificate(tmp_path, "example.org", "-days", "2", "-addext", "subjectAltName=DNS:example.org")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with serving(tls=_context(other)) as server, pytest.raises(ReadError, match="certificate is not accepted"):
        _read(server.put("r.ffr", content))


def test_the_certificates_of_a_profile_count_for_all_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # obstore takes no certificate of an authority for that of a server.
    leaf = _certificate(tmp_path, "localhost", *GOOD, "-addext", "basicConstraints=critical,CA:FALSE")
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serving(tls=_context(leaf)) as server:
        _certificate_of_profile(tmp_path, server, leaf)
        _use_store(server)


def _certificate_of_profile(folder: Path, server: ObjectServer, bundle: Path) -> None:
    (folder / ".aws").mkdir(exist_ok=True)
    (folder / ".aws" / "credentials").write_text("[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
    (folder / ".aws" / "config").write_text(f"[default]\nca_bundle = {bundle}\nendpoint_url = {server.url}\n")


def test_the_certificates_of_a_profile_replace_none(
    server: ObjectServer, good: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    """Those of a store of S3 are trusted besides SSL_CERT_FILE, which other servers need."""
    own = _certificate(tmp_path, "localhost", *GOOD)
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(good))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nothing"))
    with serving(tls=_context(own)) as store:
        _certificate_of_profile(tmp_path, store, own)
        assert _read(server.put("r.ffr", content)) == RECORDS
        _use_store(store)


def test_a_libcurl_that_takes_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_CA_BUNDLE is in place of SSL_CERT_FILE there, and that in place of the file of a profile."""
    monkeypatch.setattr(http_settings, "lib", SimpleNamespace(fffs_http_adds_usual=lambda: 0))
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    nothing = ffi.NULL
    assert http_settings._authorities("usual", "folder", "profile") == (b"usual", b"folder", False)
    assert http_settings._authorities(None, None, "profile") == (b"profile", nothing, False)
    assert http_settings._authorities(None, None, None) == (nothing, nothing, False)
    monkeypatch.setenv("AWS_CA_BUNDLE", "named")
    for adds in (0, 1):
        monkeypatch.setattr(http_settings.lib, "fffs_http_adds_usual", lambda adds=adds: adds)
        assert http_settings._authorities("usual", None, "named") == (b"named", nothing, False)


def _signed(folder: Path, *options: str) -> tuple[Path, Path]:
    """Make an authority, and a certificate that it signs, with its key."""
    authority = _certificate(folder, "authority", "-days", "2", *options)
    leaf, request = folder / "leaf", folder / "request"
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    make = f"openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {folder / 'leaf.key'} -out {request}"
    sign = f"openssl x509 -req -in {request} -CA {authority} -CAcreateserial -days 2 -out {leaf}"
    for command in (make, f"{sign} -extfile {folder / 'extensions'}"):
        subprocess.run(command.split(), check=True, capture_output=True)
    leaf.write_bytes(leaf.read_bytes() + (folder / "leaf.key").read_bytes())
    return authority, leaf


def _trusted(server: ObjectServer, content: bytes) -> tuple[bool, bool]:
    """Whether the certificate is trusted when an object is read, and when one is written."""
    url = server.put("r.ffr", content)
    try:
        reads = _read(url) == RECORDS
    except ReadError:
        reads = False
    sender = Sender()
    try:
        writes = sender.send("PUT", lambda: f"{server.url}/w", b"abc", deadline=1).is_good
    except OSError:
        writes = False
    finally:
        sender.close()
    return reads, writes


def test_reads_and_writes_trust_the_same_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    """An authority that Python 3.13 finds too old, a server's own certificate, and an authority in SSL_CERT_DIR."""
    authority, leaf = _signed(tmp_path, "-addext", "basicConstraints=CA:TRUE")
    strict = ssl.create_default_context

    def context() -> ssl.SSLContext:
        found = strict()
        found.verify_flags |= ssl.VERIFY_X509_STRICT  # as of Python 3.13
        return found

    monkeypatch.setattr(ssl, "create_default_context", context)
    hashed = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", authority], capture_output=True, check=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"{hashed.stdout.decode().strip()}.0").symlink_to(authority)
    with serving(tls=_context(leaf)) as server:
        for settings, trusted in (
            ({}, False),
            ({"AWS_CA_BUNDLE": authority}, True),
            ({"AWS_CA_BUNDLE": leaf}, True),
            ({"SSL_CERT_FILE": leaf}, True),
            ({"SSL_CERT_DIR": tmp_path / "folder"}, True),
            ({"SSL_CERT_DIR": tmp_path}, False),
        ):
            clear_environment(monkeypatch, tmp_path)
            for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
                monkeypatch.delenv(name, raising=False)
            for name, value in settings.items():
                monkeypatch.setenv(name, str(value))
            assert _trusted(server, content) == (trusted, trusted), settings


def test_profiles_are_not_read_for_each_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There may be hundreds of them, and a folder that is packed has millions of objects."""
    clear_environment(monkeypatch, tmp_path)
    (tmp_path / ".aws").mkdir()
    config = tmp_path / ".aws" / "config"
    read: list[object] = []
    found = aws_profile.read_profile
    monkeypatch.setattr(aws_profile, "read_profile", lambda environment: read.append(0) or found(environment))
    for names, bundle in (["default"], "one"), (["default", "second"], "other one"):
        config.write_text("".join(f"[profile {name}]\nca_bundle = {name} {bundle}\n" for name in names))
        for name in names:
            read.clear()
            monkeypatch.setenv("AWS_PROFILE", name)
            for _ in range(3):
                assert aws_profile.certificates_file(os.environ) == f"{name} {bundle}"
            assert len(read) == 1


def _use_store(server: ObjectServer) -> None:
    """Write, read and list."""
    with fffs.FileWriter("s3://b/r.ffr", len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)
    assert _read("s3://b/r.ffr") == RECORDS
    page = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    headers = {"Content-Length": str(len(page))}
    server.always = lambda _, answer: answer.__dict__.update(status=200, body=page, headers=headers)
    assert list(list_objects(parse_url("s3://b/d/"), delimiter=True)) == []
    object_client._owner.end()


def test_a_file_of_certificates_that_does_not_exist(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, content: bytes, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "missing"))
    with pytest.raises(ReadError, match="certificate is not accepted"):
        _read(server.put("r.ffr", content))


def test_a_redirection_to_plain_http_is_not_followed(server: ObjectServer, trust: None, content: bytes) -> None:
    with serving() as plain:
        target = plain.put("r.ffr", content)

        def redirect(request: Request, answer: Answer) -> None:
            answer.status, answer.body = 302, b""
            answer.headers = {"Location": target, "Content-Length": "0"}

        url = server.put("r.ffr", content)
        server.always = redirect
        with pytest.raises(ReadError):
            _read(url)
        assert not plain.requests


# ---------------------------------------------------------------- proxies


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of settings of AWS, in which a test names certificates."""
    for name in ("SSL_CERT_FILE", "AWS_CA_BUNDLE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


def name_certificates(profile: Path, path: Path) -> None:
    profile.write_text(f"[default]\nca_bundle = {path}\n")


def test_certificates_that_are_named_later_are_trusted_by_open_readers(
    server: ObjectServer, content: bytes, good: Path, profile: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = server.put("r.ffr", content)
    name_certificates(profile, good)
    with fffs.FileReader(url, cache="off") as reader:
        name_certificates(profile, _certificate(tmp_path, "localhost", *GOOD))
        monkeypatch.setattr(http_settings, "_looked", 0.0)
        with pytest.raises(ReadError, match="certificate is not accepted"):
            reader.read([4])
        name_certificates(profile, good)
        monkeypatch.setattr(http_settings, "_looked", 0.0)
        assert bytes(reader.read([4])[0]) == RECORDS[4]


@pytest.mark.fuse
def test_certificates_that_are_named_later_are_trusted_by_mounts(
    server: ObjectServer, good: Path, profile: Path, tmp_path: Path
) -> None:
    with fffs.FileWriter(tmp_path / "r.ffr", 300) as writer:
        for _ in range(300):
            writer.write_one(bytes(40_000))
    url: Any = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    name_certificates(profile, good)
    with fffs.mount.mounted(url, cache="off") as folder:
        name_certificates(profile, _certificate(tmp_path, "localhost", *GOOD))
        # The kernel keeps what was read, and a reader what is near the ends.
        paths = sorted(Path(folder).iterdir())[50:-50]
        wait_until(lambda: not _can_read(paths.pop()))
        name_certificates(profile, good)
        wait_until(lambda: _can_read(paths[0]))


def test_a_setting_that_becomes_wrong_is_an_error_of_the_next_opening(
    server: ObjectServer, trust: None, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.put("r.ffr", content)
    with fffs.FileReader(url, cache="off") as reader:
        for value in ("abc", "0"):
            monkeypatch.setenv("FFFS_DEADLINE", value)
            monkeypatch.setattr(http_settings, "_looked", 0.0)
            assert bytes(reader.read_one(5)) == RECORDS[5]
            with pytest.raises(UsageError, match="FFFS_DEADLINE must be a number"):
                fffs.FileReader(url)


def _can_read(path: Path) -> bool:
    try:
        return path.read_bytes() != b""
    except OSError:
        return False


@pytest.mark.fuse
@pytest.mark.usefixtures("trust")
def test_a_mount_finds_the_files_of_relative_paths(
    server: ObjectServer, content: bytes, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(good.parent)
    monkeypatch.setenv("SSL_CERT_FILE", good.name)
    with fffs.mount.mounted(server.put("r.ffr", content)) as folder:
        assert [path.read_bytes() for path in sorted(Path(folder).iterdir())] == RECORDS


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    for name in ("HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with proxying() as found:
        monkeypatch.setenv("https_proxy", f"http://me:pa%3Ass-word@{found.address}")
        yield found


def test_a_proxy_that_connects(server: ObjectServer, trust: None, content: bytes, proxy: ConnectProxy) -> None:
    proxy.access = "me:pa:ss-word"
    assert _read(server.put("r.ffr", content)) == RECORDS
    assert proxy.lines[0].startswith(f"CONNECT {server.url.removeprefix('https://')} ")


@pytest.mark.parametrize("code", [401, 403, 405, 407])
def test_what_a_proxy_refuses_is_an_error_at_once(
    server: ObjectServer, trust: None, content: bytes, proxy: ConnectProxy, code: int
) -> None:
    """It is not repeated until the deadline, which is a minute here: the proxy would refuse it again."""
    proxy.status = code
    url, begin = server.put("r.ffr", content), time.monotonic()
    with pytest.raises(ReadError, match="the proxy wants" if code in (401, 407) else f"{code} of the proxy") as raised:
        _read(url)
    assert time.monotonic() - begin < 5
    assert url in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "ss-word" not in str(raised.value)
    assert len(proxy.lines) == 1


def test_a_proxy_that_fails_for_a_moment(
    server: ObjectServer, trust: None, content: bytes, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, codes = ConnectProxy._judge, [502, 503]
    monkeypatch.setattr(ConnectProxy, "_judge", lambda self, head: codes.pop() if codes else judge(self, head))
    assert _read(server.put("r.ffr", content)) == RECORDS
    assert not codes


@pytest.mark.parametrize("code", [403, 407])
def test_a_listing_whose_proxy_refuses(proxy: ConnectProxy, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clear_environment(monkeypatch, Path("/nonexistent"))
    monkeypatch.setenv("https_proxy", f"http://me:pa%3Ass-word@{proxy.address}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s" * 20)
    proxy.status = code
    with pytest.raises(ReadError, match=f"store.example: HTTP status {code} of the proxy; see https_proxy") as raised:
        list(list_objects(parse_url("s3://b/d/"), delimiter=True))
    assert "ss-word" not in str(raised.value)
    object_client._owner.end()


@pytest.mark.parametrize("code", [403, 407])
def test_a_writer_whose_proxy_refuses(
    server: ObjectServer, trust: None, proxy: ConnectProxy, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.status = code
    sender, begin = Sender(), time.monotonic()
    with pytest.raises(OSError, match=f"{code} of the proxy") as raised:
        sender.send("PUT", lambda: f"{server.url}/b/k?X-Amz-Signature=secret", b"abc")
    assert time.monotonic() - begin < 5
    assert "ss-word" not in str(raised.value)
    assert "secret" not in str(raised.value)
    assert len(proxy.lines) == 1


@pytest.mark.parametrize("address", ["http://joe:S3cret/x@{}", "foo://joe:S3cret@{}"])
def test_what_is_no_address_of_a_proxy_is_an_error_at_once_and_not_shown(
    server: ObjectServer,
    trust: None,
    content: bytes,
    proxy: ConnectProxy,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
) -> None:
    proxy.access = "me:pa:ss-word"
    url, begin = server.put("r.ffr", content), time.monotonic()
    with fffs.FileReader(url, cache="off") as reader:
        monkeypatch.setenv("https_proxy", address.format(proxy.address))
        with pytest.raises(ReadError, match="does not support the address of the proxy; see https_proxy") as raised:
            reader.read([5])
    assert "cret" not in str(raised.value)
    for use in (
        lambda: fffs.FileReader(url),
        lambda: Sender().send("PUT", lambda: f"{server.url}/b/k", b"abc"),
    ):
        with pytest.raises(UsageError, match="https_proxy is not the address of a proxy") as refused:
            use()
        assert "cret" not in str(refused.value)
    assert time.monotonic() - begin < 5


# ---------------------------------------------------------------- servers and processes


def test_a_server_that_speaks_no_tls(trust: None, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    with serving() as plain:
        url = plain.put("r.ffr", content).replace("http://", "https://")
        with pytest.raises(ReadError) as raised:
            _read(url)
        assert "\n" not in str(raised.value)


FORKING = """
import os, signal, sys, threading, warnings
import fffs

warnings.simplefilter("ignore", DeprecationWarning)  # of fork with threads
url = sys.argv[1]
reader, ended = fffs.FileReader(url), threading.Event()


def read() -> None:
    while not ended.is_set():
        with fffs.FileReader(url) as other:
            other.read([1, 2, 3])


def fork(depth: int) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        if depth:
            fork(depth - 1)
        os._exit(0 if bytes(reader.read_one(depth)) == bytes([depth]) * 1000 else 1)
    assert os.waitpid(child, 0)[1] == 0


threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
try:
    for _ in range(15):
        fork(1)
finally:
    ended.set()
"""


def test_forks_while_other_threads_are_inside_libcurl(server: ObjectServer, trust: None, content: bytes) -> None:
    """Locks of libcurl and OpenSSL must not stay locked in the child."""
    url = server.put("r.ffr", content)
    server.always = lambda request, answer: answer.headers.update({"Connection": "close"})  # so that many are opened
    done = subprocess.run([sys.executable, "-c", FORKING, url], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
