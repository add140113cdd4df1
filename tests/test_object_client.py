"""The store process: signed URLs and listings of a real S3 server, and what happens around a process."""

from __future__ import annotations

import contextlib
import errno
import http.server
import json
import os
import pickle
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from inside import (
    MAX_JSON,
    BrokenProtocolError,
    SignedUrl,
    entry_of,
    list_objects,
    object_client,
    parse_url,
    read_message,
    redact,
    sas_query,
    secrets_of,
    sign,
    store_connection,
    write_message,
)
from weed import REGION, Weed, clear_environment, cloud, free_ports, weed

from fffs.errors import AccessError, Exit, FffsError, ReadError, SourceNotFoundError, UsageError

__all__ = ["cloud", "weed"]  # fixtures
SECRET = Weed.secret
ODD_KEYS = [
    "odd/%2F",
    "odd/100%",
    "odd/a b",
    "odd/a#b",
    "odd/a&b=c",
    "odd/a'(b)!*",
    "odd/a+b",
    "odd/a,b;c$",
    "odd/a:b@c",
    "odd/a?b",
    'odd/{}|^`"<>[]',
    "odd/~a.",
    "odd/é/ü",
    "odd/e\u0301",  # another name than the one before, for stores
    "odd/\N{GRINNING FACE}",
    "odd/.../..a",
]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    object_client._owner.end()


def get(url: SignedUrl, **headers: str) -> bytes:
    request = urllib.request.Request(url.url, headers={name.replace("_", "-"): text for name, text in headers.items()})
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()


def status_of(url: SignedUrl, **headers: str) -> int:
    try:
        get(url, **headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def listed(url: str, delimiter: bool = False) -> list[tuple[str, int, str]]:
    return list(list_objects(parse_url(url), delimiter))


def pid_of_process() -> int:
    return object_client._owner.connect().pid


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def in_child(work: Callable[[], object]) -> int:
    """Fork, work in the child, and return its status: 0 if the work raised nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)  # a child that hangs fails
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


# ------------------------------------------------------------ objects


def test_a_signed_url_reads_the_object_and_its_ranges(cloud: Weed) -> None:
    etag = cloud.put("test", "signed/a b", b"0123456789")
    url = sign(parse_url("s3://test/signed/a b"))
    assert get(url) == b"0123456789"
    assert get(url, Range="bytes=2-4", If_Match=etag) == b"234"
    assert status_of(url, Range="bytes=2-4", If_Match='"other"') == 412
    assert status_of(sign(parse_url("s3://test/signed/none"))) == 404
    assert 1700 < url.expires - time.monotonic() <= 1800


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_reach_the_server_as_they_are(cloud: Weed, key: str) -> None:
    cloud.put("test", key, key.encode())
    assert get(sign(parse_url(f"s3://test/{key}"))) == key.encode()


def test_odd_keys_are_listed_as_they_are(cloud: Weed) -> None:
    cloud.make_bucket("oddkeys")
    for key in ODD_KEYS:
        cloud.put("oddkeys", key, key.encode())
    found = listed("s3://oddkeys/odd/")
    assert sorted(key for key, _, _ in found) == sorted(ODD_KEYS)
    assert all(size == len(key.encode()) and etag for key, size, etag in found)


def test_many_keys_are_listed_in_pages_in_order(cloud: Weed) -> None:
    keys = [f"many/{number % 7}/{number:05}" for number in range(2500)]
    put_all(cloud, keys)
    cloud.put("test", "many2/x", b"")
    assert [key for key, _, _ in listed("s3://test/many")] == sorted(keys)
    assert [key for key, _, _ in listed("s3://test/many/", True)] == [f"many/{number}/" for number in range(7)]
    assert len(listed("s3://test/many/3/", True)) == 357


def put_all(weed: Weed, keys: list[str]) -> None:
    def put(part: list[str]) -> None:
        for key in part:
            weed.put("test", key, b"x")

    threads = [threading.Thread(target=put, args=(keys[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_listing_goes_on_in_a_new_process(cloud: Weed) -> None:
    keys = [f"going/{number:05}" for number in range(1100)]
    put_all(cloud, keys)
    listing = list_objects(parse_url("s3://test/going"), False)
    found = [next(listing)[0] for _ in range(10)]
    os.kill(pid_of_process(), signal.SIGKILL)
    found += [key for key, _, _ in listing]
    assert found == keys


def test_markers_of_folders_are_not_listed_as_files(cloud: Weed) -> None:
    for key in ("marked/", "marked/sub/", "marked/sub/file"):
        cloud.put("test", key, b"")
    assert [key for key, _, _ in listed("s3://test/marked/")] == ["marked/sub/file"]


def test_an_empty_folder_is_an_empty_listing(cloud: Weed) -> None:
    assert listed("s3://test/nothing/here/") == listed("s3://test/nothing/here", True) == []


# ------------------------------------------------------------ refusals


def test_a_missing_bucket(cloud: Weed) -> None:
    for delimiter in (False, True):
        with pytest.raises(SourceNotFoundError, match=r"^s3://nobucket/x/: there is no such bucket"):
            listed("s3://nobucket/x/", delimiter)


def test_wrong_keys_are_an_access_error(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "wrongwrongwrong")
            with pytest.raises(
                AccessError, match=r"^s3://test/x/: no access: HTTP status 403: .* check AWS_ACCESS_KEY_ID"
            ) as caught:
                listed("s3://test/x/")
            assert caught.value.exit_code == Exit.READ
            assert caught.value.errno == errno.EACCES
            assert status_of(sign(parse_url("s3://test/x"))) == 403


def test_no_credentials_at_all(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    for ask in (lambda: sign(parse_url("s3://test/x")), lambda: listed("s3://test/x")):
        with pytest.raises(AccessError, match=r"no credentials were found; .*AWS_SKIP_SIGNATURE=true"):
            ask()


def test_half_of_the_credentials(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessError, match="AWS_SECRET_ACCESS_KEY is not"):
        sign(parse_url("s3://test/x"))


def test_a_server_that_is_not_there(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(ReadError, match=r"nothing answers at 127\.0\.0\.1") as caught:
        listed("s3://test/x")
    assert caught.value.errno == errno.ECONNREFUSED


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://192.0.2.1:80", "AWS_ALLOW_HTTP=true"),
        ("ftp://127.0.0.1", "must be like"),
        ("nonsense", "must be like"),
        (f"http://user:{SECRET}@127.0.0.1", "must be like"),
    ],
)
def test_endpoints_that_are_refused(cloud: Weed, endpoint: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    with pytest.raises(UsageError, match=message) as caught:
        sign(parse_url("s3://test/x"))
    assert SECRET not in str(caught.value)


def test_folders_are_not_signed_and_the_web_is_not_listed(cloud: Weed) -> None:
    with pytest.raises(UsageError, match="a key is missing"):
        sign(parse_url("s3://test/folder/"))
    with pytest.raises(UsageError, match="cannot be listed"):
        listed("https://example.org/folder/?sig=x")
    with pytest.raises(UsageError, match="seconds"):
        sign(parse_url("s3://test/x"), 0)


def test_addresses_of_the_web_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    url = sign(parse_url("https://example.org/x?sig=s3cret"))
    assert (url.url, url.expires) == ("https://example.org/x?sig=s3cret", float("inf"))
    assert repr(url) == "SignedUrl('https://example.org/x?…')"
    with pytest.raises(TypeError):
        pickle.dumps(url)


# ------------------------------------------------------------ settings


def test_the_environment_of_now_counts(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    name = parse_url("s3://test/x y")
    sign(name)
    first = pid_of_process()
    sign(name)
    assert pid_of_process() == first
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    plain = sign(name)
    assert (plain.url, plain.expires) == (f"{cloud.endpoint}/test/x%20y", float("inf"))
    assert pid_of_process() != first
    assert not is_alive(first)


VIRTUAL = {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com/test/%2541/%C3%A9%5C"),
        ({"AWS_REGION": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/test/%2541/%C3%A9%5C"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "https://s3.eu-west-2.amazonaws.com/test/%2541/%C3%A9%5C"),
        (VIRTUAL, "https://test.s3.us-east-1.amazonaws.com/%2541/%C3%A9%5C"),
        ({"AWS_ENDPOINT_URL": "", "AWS_REGION": ""}, "https://s3.us-east-1.amazonaws.com/test/%2541/%C3%A9%5C"),
        ({"AWS_ENDPOINT_URL": "https://host/sub/"}, "https://host/sub/test/%2541/%C3%A9%5C"),
        # An endpoint may have the bucket, as obstore wants it, or not, as boto3 wants it.
        ({**VIRTUAL, "AWS_ENDPOINT_URL": "https://host"}, "https://test.host/%2541/%C3%A9%5C"),
        ({**VIRTUAL, "AWS_ENDPOINT_URL": "https://test.host:9/"}, "https://test.host:9/%2541/%C3%A9%5C"),
        ({**VIRTUAL, "AWS_ENDPOINT_URL": "https://other.host/"}, "https://test.other.host/%2541/%C3%A9%5C"),
        (
            {"AWS_ENDPOINT_URL": "https://host", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            "https://s3.us-east-1.amazonaws.com/test/%2541/%C3%A9%5C",
        ),
    ],
)
def test_anonymous_urls(settings: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert sign(parse_url("s3://test/%41/é\\")).url == url


def test_other_clouds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clear_environment(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        sign(parse_url("az://box/k"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=s3cret")
    url = sign(parse_url("az://box/a b"))
    assert url.url == "https://acc.blob.core.windows.net/box/a%20b?sv=1&sig=s3cret"
    assert 1700 < url.expires - time.monotonic() <= 1800
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&se=2020-01-01T00:00:00Z&sig=s3cret")
    with pytest.raises(AccessError, match=r"the credentials ended .*AZURE_STORAGE_SAS_TOKEN"):
        sign(parse_url("az://box/a b"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    url = sign(parse_url("az://box/a b"))
    assert url.url.startswith("https://acc.blob.core.windows.net/box/a%20b?st=")
    assert 1700 < url.expires - time.monotonic() <= 1800
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    assert sign(parse_url("az://box/a b")).url == "https://acc.blob.core.windows.net/box/a%20b"
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    assert sign(parse_url("gs://box/a b~/%")).url == "https://storage.googleapis.com/box/a%20b~/%25"


def test_listings_and_answers_have_the_same_etags() -> None:
    """Those of Azure have quotes in answers only. A folder whose objects seemed replaced could not be packed."""
    listed = {"path": "a/b", "size": 5, "last_modified": datetime(2026, 1, 2, tzinfo=timezone.utc)}
    for etag, wanted in (("0x8D", '"0x8D"'), ('"x"', '"x"'), ('W/"x"', 'W/"x"'), (None, "")):
        assert entry_of({**listed, "e_tag": etag}) == ("a/b", 5, wanted, 1767312000 * 10**9)


OBSTORE_SIGNS = """
import datetime, obstore, sys
store = obstore.store.AzureStore("box", account_name="acc", account_key="c2VjcmV0")
print(obstore.sign(store, "GET", "a/b-c.ffr", datetime.timedelta(hours=1)))
"""


def test_signatures_of_azure_are_those_of_obstore_for_simple_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clear_environment(monkeypatch, tmp_path)
    done = subprocess.run([sys.executable, "-c", OBSTORE_SIGNS], check=True, capture_output=True, text=True)
    query = urllib.parse.urlsplit(done.stdout.strip()).query
    fields = dict(urllib.parse.parse_qsl(query))
    ours = sas_query("acc", "c2VjcmV0", "box", "a/b-c.ffr", fields["st"], fields["se"])
    assert dict(urllib.parse.parse_qsl(ours)) == fields
    with pytest.raises(UsageError, match="not base64"):
        sas_query("acc", "?", "box", "x", fields["st"], fields["se"])


def make_key() -> str:
    made = subprocess.run(["openssl", "genpkey", "-algorithm", "RSA"], check=True, capture_output=True, text=True)
    return made.stdout


def write_account(path: Path, key: str, who: str) -> None:
    account = {"type": "service_account", "private_key": key, "client_email": who, "private_key_id": "1"}
    path.write_text(json.dumps({**account, "token_uri": "https://localhost/"}))


def test_keys_that_google_would_take_for_others_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clear_environment(monkeypatch, tmp_path)
    key = make_key()
    write_account(tmp_path / "account", key, "a@b")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account"))
    signed = []
    for odd in ODD_KEYS:
        with contextlib.suppress(UsageError):
            signed.append(odd)
            path = urllib.parse.urlsplit(sign(parse_url(f"gs://box/{odd}")).url).path
            assert urllib.parse.unquote(path) == f"/box/{odd}"
            continue
        signed.pop()
    assert set(ODD_KEYS) - set(signed) <= {"odd/%2F", "odd/100%", "odd/a?b", "odd/a#b"}


def test_a_changed_account_of_google_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clear_environment(monkeypatch, tmp_path)
    key, path = make_key(), tmp_path / "account"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for who in ("a@b", "another@b"):
        write_account(path, key, who)
        assert f"X-Goog-Credential={urllib.parse.quote(who)}" in sign(parse_url("gs://box/x")).url


def write_profiles(home: Path, weed: Weed) -> None:
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(
        f"[default]\naws_access_key_id = nobody\naws_secret_access_key = {'x' * 20}\n"
        f"[weed]\naws_access_key_id = {weed.key_id}\naws_secret_access_key = {weed.secret}\n"
        "[half]\naws_access_key_id = id\n"
    )
    (home / ".aws/config").write_text(
        f"[default]\nregion = {REGION}\nendpoint_url = {weed.endpoint}\n"
        f"[profile weed]\nregion = {REGION}\nendpoint_url = {weed.endpoint}\n"
        "[profile login]\nsso_session = my\n[profile role]\nrole_arn = arn\nsource_profile = weed\n"
    )


@pytest.fixture
def profiles(weed: Weed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    clear_environment(monkeypatch, tmp_path)
    write_profiles(tmp_path, weed)
    return tmp_path


def test_keys_and_endpoint_of_a_profile(profiles: Path, weed: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    weed.put("test", "profile", b"yes")
    with pytest.raises(AccessError):
        listed("s3://test/")
    monkeypatch.setenv("AWS_PROFILE", "weed")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    assert get(sign(parse_url("s3://test/profile"))) == b"yes"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")  # keys of the environment win, as in the tools of AWS
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessError):
        listed("s3://test/")


def test_a_changed_profile_counts(profiles: Path, weed: Weed) -> None:
    with pytest.raises(AccessError):
        listed("s3://test/")
    text = (profiles / ".aws/credentials").read_text().replace("[default]", "[old]").replace("[weed]", "[default]")
    (profiles / ".aws/credentials").write_text(text)
    assert isinstance(listed("s3://test/"), list)


@pytest.mark.parametrize(
    ("profile", "kind", "message"),
    [
        ("none", UsageError, "have no profile 'none'"),
        ("half", AccessError, "has no aws_secret_access_key"),
        ("login", UsageError, "the profile 'login' has sso_session, which needs boto3: pip install boto3"),
        ("role", UsageError, "the profile 'role' has role_arn, which needs boto3: pip install boto3"),
    ],
)
def test_profiles_without_keys(
    profiles: Path, profile: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module(profiles, "boto3", "raise ImportError", monkeypatch)
    monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(kind, match=message):
        sign(parse_url("s3://test/x"))


def test_a_damaged_profile_is_not_shown(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (profiles / ".aws/credentials").write_text(f"[default\naws_secret_access_key = {SECRET}")
    with pytest.raises(UsageError, match="cannot read this file of settings") as caught:
        sign(parse_url("s3://test/x"))
    assert SECRET not in str(caught.value)


def test_other_profiles_are_asked_from_boto3(profiles: Path, weed: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    weed.put("test", "by boto3", b"yes")
    source = f"""
class Keys:
    access_key, secret_key, token = {weed.key_id!r}, {weed.secret!r}, None
    def get_frozen_credentials(self):
        return self
class Session:
    def get_credentials(self):
        return Keys()
"""
    replace_module(profiles, "boto3", "", monkeypatch)
    (profiles / "modules/boto3/session.py").write_text(source)
    monkeypatch.setenv("AWS_PROFILE", "role")
    monkeypatch.setenv("AWS_ENDPOINT_URL", weed.endpoint)
    assert get(sign(parse_url("s3://test/by boto3"))) == b"yes"


def test_a_container_without_a_file_of_its_token_needs_boto3(
    cloud: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module(tmp_path, "boto3", "raise ImportError", monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/keys")
    with pytest.raises(UsageError, match="needs boto3"):
        sign(parse_url("s3://test/x"))


def replace_module(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store process import another module of that name."""
    (folder / "modules" / name).mkdir(parents=True)
    (folder / "modules" / name / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(folder / "modules")


def test_a_url_is_renewed_before_the_credentials_end(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600)))
    assert 200 < sign(parse_url("s3://test/x")).expires - time.monotonic() <= 300
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z")
    with pytest.raises(AccessError, match="the credentials ended"):
        sign(parse_url("s3://test/x"))


class Role(http.server.BaseHTTPRequestHandler):
    """Answers as the addresses do at which machines and containers ask for credentials."""

    def answer(self) -> None:
        text = "role"
        if self.path == "/latest/api/token":
            text = "token"
        elif not self.path.endswith("/"):
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            keys = {"AccessKeyId": "role-id", "SecretAccessKey": SECRET, "Token": "role-token", "Expiration": ends}
            text = json.dumps({"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": ends, **keys})
        self.send(text)

    def send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keys = f"<AccessKeyId>role-id</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        keys += "<SessionToken>role-token</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>"
        result = f"<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult>"
        self.send(f"<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>")

    do_GET = do_PUT = answer  # noqa: N815 - the names that the server looks for

    def log_message(self, *_: object) -> None:
        pass


class EmptyBucket(http.server.BaseHTTPRequestHandler):
    """Answers that a bucket is empty."""

    def do_GET(self) -> None:
        text = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], certificate: Path | None = None) -> Iterator[str]:
    """Answer requests during a block; yield the address, which has https if there is a folder for a certificate."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if certificate:
            command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -keyout key -out cert"
            extensions = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
            subprocess.run([*command.split(), *extensions], cwd=certificate, check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "cert", certificate / "key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", ["machine", "container", "web identity"])
def test_credentials_of_a_role_end_soon(
    cloud: Weed, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("token")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    # obstore asks for tokens of web identity only with encryption.
    with serving(Role, tmp_path if kind == "web identity" else None) as address:
        settings = {
            "machine": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address},
            "container": {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{address}/keys",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
            },
            "web identity": {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
                "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/x",
                "AWS_ENDPOINT_URL_STS": address,
                "AWS_CA_BUNDLE": str(tmp_path / "cert"),
            },
        }
        for name, value in settings[kind].items():
            monkeypatch.setenv(name, value)
        url = sign(parse_url("s3://test/x"))
    assert "X-Amz-Security-Token=role-token" in url.url
    assert 100 < url.expires - time.monotonic() <= 150


def test_certificates_are_checked(cloud: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(EmptyBucket, tmp_path) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(ReadError, match="is not trusted"):
            listed("s3://test/x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "cert"))
        assert listed("s3://test/x") == []


# ------------------------------------------------------------ the process


def test_without_obstore(cloud: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_module(tmp_path, "obstore", "raise ImportError('none')", monkeypatch)
    with pytest.raises(UsageError, match=r"pip install 'fffs\[objects\]'"):
        sign(parse_url("s3://test/x"))


def test_a_process_that_does_not_start(cloud: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_module(
        tmp_path, "obstore", f"raise RuntimeError('last words: {SECRET} {cloud.endpoint}/x?sig=1')", monkeypatch
    )
    with pytest.raises(ReadError, match=r"starting it: RuntimeError: last words: … .*/x\?…") as caught:
        sign(parse_url("s3://test/x"))
    assert SECRET not in str(caught.value)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ReadError, match="No such file"):
        sign(parse_url("s3://test/x"))


def test_a_killed_process_is_replaced(cloud: Weed) -> None:
    cloud.put("test", "killed", b"x")
    for _ in range(3):
        os.kill(pid_of_process(), signal.SIGKILL)
        assert get(sign(parse_url("s3://test/killed"))) == b"x"


def test_a_process_that_is_stopped_does_not_hang_its_owner(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pid_of_process()
    os.kill(first, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(store_connection, "PATIENCE", 0.3)
        with pytest.raises(ReadError) as caught:
            sign(parse_url("s3://test/x"))
    assert caught.value.errno == errno.ETIMEDOUT
    assert not is_alive(first)
    sign(parse_url("s3://test/x"))


def test_interrupts_at_any_time_leave_a_client_that_works(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    name = parse_url("s3://test/x")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(20):
            sign(name)
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, k * 0.00003 + 0.00001)
                for _ in range(100):
                    sign(name)
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert get(sign(parse_url("s3://test/ready"))) == b""


def test_an_interrupt_before_an_answer_is_handed_out_is_no_silence(
    cloud: Weed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    name = parse_url("s3://test/x")
    sign(name)
    with monkeypatch.context() as late, pytest.raises(KeyboardInterrupt):
        late.setattr(store_connection.StoreConnection, "_hand_out", interrupt)
        sign(name)
    begin = time.monotonic()
    sign(name)
    assert time.monotonic() - begin < 30


def test_threads_go_on_while_processes_are_killed(cloud: Weed) -> None:
    stop = threading.Event()
    problems: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                assert [key for key, _, _ in listed("s3://test/killing", True)] == ["killing/x"]
        except ReadError as error:
            assert "killed twice" in str(error)
        except BaseException as error:
            problems.append(error)

    cloud.put("test", "killing/x", b"")
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        os.kill(pid_of_process(), signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []


def test_an_interrupt_of_the_terminal_is_for_the_owner_only(cloud: Weed) -> None:
    pid = pid_of_process()
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_forks_before_between_and_after(cloud: Weed) -> None:
    cloud.put("test", "forked", b"x")

    def work() -> None:
        assert get(sign(parse_url("s3://test/forked"))) == b"x"
        assert listed("s3://test/forked") == []

    assert in_child(work) == 0
    work()
    parent = pid_of_process()

    def child() -> None:
        work()
        assert pid_of_process() != parent
        assert in_child(work) == 0
        work()

    assert in_child(child) == 0
    work()
    assert pid_of_process() == parent
    object_client._owner.end()
    assert in_child(work) == 0
    work()


def test_a_fork_while_threads_ask(cloud: Weed) -> None:
    name = parse_url("s3://test/asked")
    cloud.put("test", "asked", b"x")
    stop = threading.Event()
    problems: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                assert get(sign(name)) == b"x"
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    statuses = [in_child(lambda: sign(name)) for _ in range(4)]
    stop.set()
    for thread in threads:
        thread.join()
    assert (statuses, problems) == ([0] * 4, [])


def test_a_fork_while_another_thread_holds_all_locks(cloud: Weed) -> None:
    name = parse_url("s3://test/x")
    connection = object_client._owner.connect()
    with contextlib.ExitStack() as held:
        for lock in (object_client._owner._lock, connection._changed, connection._writing):
            held.enter_context(lock)
        assert in_child(lambda: sign(name)) == 0


def test_a_child_lets_go_of_its_parents_pipes(cloud: Weed) -> None:
    connection = object_client._owner.connect()
    pipes = {os.readlink(f"/proc/self/fd/{fd}") for fd in (connection._input, connection._output)}

    def child() -> None:
        mine = set()
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        assert not pipes & mine

    assert in_child(child) == 0


def test_threads_share_one_process(cloud: Weed) -> None:
    cloud.put("test", "shared", b"x")
    urls: list[str] = []

    def work(number: int) -> None:
        for k in range(20):
            urls.append(sign(parse_url(f"s3://test/shared{number}.{k}")).url.partition("?")[0])
            assert listed(f"s3://test/none{number}") == []

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(urls) == sorted(f"{cloud.endpoint}/test/shared{n}.{k}" for n in range(8) for k in range(20))


OWNER = """
import os, sys, time
from fffs.objects import client
from fffs.objects.names import parse_url
client.sign(parse_url("s3://test/x"))
if sys.argv[1] == "fork" and os.fork() == 0:
    time.sleep(60)
print(client._owner.connection.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_the_process_ends_with_its_owner(cloud: Weed, how: str) -> None:
    command = [sys.executable, "-c", OWNER, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
        wait_for(lambda: not is_alive(pid))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)


def test_an_owner_that_ends_leaves_nothing_and_says_nothing(cloud: Weed) -> None:
    program = OWNER.replace("time.sleep(60)", "pass")
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, "alone"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not is_alive(int(done.stdout))


# ------------------------------------------------------------ secrets


def test_no_secret_leaves(cloud: Weed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    url = sign(parse_url("s3://test/x"))
    pid = pid_of_process()
    seen += [repr(url), str(url), f"{url}", repr(vars(object_client._owner)), repr(object_client._owner.connection)]
    seen += [Path(f"/proc/{pid}/{file}").read_text() for file in ("cmdline", "comm")]
    for settings in (
        {"AWS_SECRET_ACCESS_KEY": SECRET + "wrong"},
        {"AWS_SESSION_TOKEN": SECRET + "token"},
        {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_ports(1)[0]}/{SECRET}"},
        {"AWS_ENDPOINT_URL": f"{cloud.endpoint}?X-Amz-Signature={SECRET}"},
        {"AWS_ENDPOINT_URL": f"https://{cloud.address}"},
        {"AWS_CA_BUNDLE": f"/{SECRET}"},
    ):
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            with pytest.raises(FffsError) as caught:
                listed("s3://test/x")
            error: BaseException | None = caught.value
            while error:  # a traceback shows all of them
                seen += [str(error), repr(error)]
                error = error.__context__
    output = capfd.readouterr()
    seen += [output.out, output.err]
    for text in seen:
        assert SECRET not in text
        assert "X-Amz-Signature" not in text
        assert "Signature=" not in text


def test_messages_are_cut_to_one_line_without_secrets() -> None:
    secrets = secrets_of({"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ACCESS_KEY_ID": "visible-id", "X_TOKEN": "abc"})
    assert secrets == [SECRET]
    text = f"GET https://h/a%3Fb?X-Amz-Signature=ab12 (https://h/c?sig=12) {SECRET}\n"
    text += "X-Amz-Signature=cd\x1b[2 \x1bJ\n\nDebug source: s"
    assert redact(text, secrets) == "GET https://h/a%3Fb?… (https://h/c?…) … … J"
    body = (
        "403: <Error><Code>No</Code><Message>Not you.\nRequestId:1</Message><StringToSign>secret</StringToSign></Error>"
    )
    assert redact(body, []) == "403: No: Not you."
    assert len(redact("x" * 1000, [])) == 300


# ------------------------------------------------------------ the protocol


def test_messages_survive_pipes() -> None:
    reader, writer = os.pipe()
    message = {"name": "\udce9 é \0", "number": 2**60}
    write_message(writer, message, b"\xff\0")
    assert read_message(reader) == (message, b"\xff\0")
    os.close(writer)
    with pytest.raises(BrokenProtocolError):
        read_message(reader)
    os.close(reader)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\0\0\0",
        struct.pack("<II", 5, 0) + b"{}",
        struct.pack("<II", 2, 5) + b"{}ab",
        struct.pack("<II", MAX_JSON + 1, 0),
        struct.pack("<II", 2, 2**32 - 1) + b"{}",
        struct.pack("<II", 2, 0) + b"[]",
        struct.pack("<II", 3, 0) + b"\xff\xfe{",
        struct.pack("<II", 60_000, 0) + b"[" * 60_000,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    with pytest.raises(BrokenProtocolError):
        read_message(reader)
    os.close(reader)


@pytest.mark.parametrize("answer", [{}, {"url": 1, "seconds": 2}, {"url": "x", "seconds": "y"}, {"entries": [[1]]}])
def test_answers_that_make_no_sense(answer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
import json
from fffs.objects.protocol import read_message, write_message
write_message(1, {{"ready": ""}})
while True:
    request, _ = read_message(0)
    write_message(1, {{"id": [request["id"]]}})
    write_message(1, {{"id": request["id"] + 1000}})
    write_message(1, {{"id": request["id"], **json.loads({json.dumps(answer)!r})}})
"""
    (tmp_path / "program.py").write_text(program)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/program.py\n")
    python.chmod(0o755)
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ReadError, match="makes no sense"):
        sign(parse_url("s3://test/x"))
    with pytest.raises(ReadError, match="makes no sense"):
        listed("s3://test/x")
