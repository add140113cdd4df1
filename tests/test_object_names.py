"""The names of objects: what is one, what is refused, and what messages show."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import ObjectName, base_name, is_url, join_url, parse_url

from fffs.errors import UsageError


@pytest.fixture(autouse=True)
def _no_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)


@pytest.mark.parametrize("name", ["s3://b/k", "gs://b/k", "az://c/k", "https://h/p", "http://localhost/p", "S3://b/k"])
def test_urls_of_stores_and_of_the_web_are_urls(name: str) -> None:
    assert is_url(name)
    assert parse_url(name).scheme == name.lower().partition(":")[0]


@pytest.mark.parametrize(
    "name",
    [
        "a:b",
        "s3:/b/k",
        "s3:b",
        "/s3://b/k",
        "./s3://b/k",
        " s3://b/k",
        "file:///x",
        "ftp://h/x",
        "hf://d/x",
        "s3",
        "",
        "://",
    ],
)
def test_all_else_is_a_local_file(name: str) -> None:
    assert not is_url(name)
    with pytest.raises(UsageError, match="is not a URL"):
        parse_url(name)


@pytest.mark.parametrize(
    "key",
    [
        "a%2Fb",
        "a b",
        "a+b",
        "a#b",
        "a?b",
        "a&b=c",
        "é/ü",
        "\N{GRINNING FACE}",
        "a@b:c",
        "..a/b..",
        ".../a",
        "%",
        "~a'(b)!*",
    ],
)
def test_keys_of_stores_are_taken_as_they_are(key: str) -> None:
    name = parse_url(f"s3://bucket/{key}")
    assert (name.bucket, name.key) == ("bucket", key)
    assert name.name == name.url == f"s3://bucket/{key}"


def test_addresses_of_the_web_are_passed_on_as_they_are() -> None:
    url = "https://example.org:8443/a%20b/c%2Fd;x=1?token=s3cret&u=/../x"
    name = parse_url(url)
    assert name.url == url
    assert name.name == "https://example.org:8443/a%20b/c%2Fd;x=1?…"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s3://user:passw0rd@bucket/key", "must not contain a user"),
        ("https://user:passw0rd@host/key", "must not contain a user"),
        ("https://passw0rd@host/key", "must not contain a user"),
        ("s3://AKIA:passw0rd/x@bucket/key", "letters, digits"),
        ("https://user:passw0rd/x@host/key", "letters, digits"),
        ("https://host?sig=passw0rd", "slash is missing"),
        ("https://host/key#passw0rd", "fragment"),
        ("https://host/passw0rd key", "percent-encoded"),
        ("https://host/k\u00e9y", "percent-encoded"),
        ("https://host/k\udce9y", "percent-encoded"),
        ("https://h\u00f6st/key", "letters, digits"),
        ("https://host:99999/key", "letters, digits"),
        ("https:///key", "host is missing"),
        ("https://ho%73t/key", "letters, digits"),
        ("https://[::1/key", "letters, digits"),
        ("https://host/a/../b", "parts that are"),
        ("https://host/a/%2E%2e/b", "parts that are"),
        ("https://host/./b", "parts that are"),
        ("https://host/..?x", "parts that are"),
        ("https://host/a\r\nHost: evil", "percent-encoded"),
        ("s3://", "bucket is missing"),
        ("s3:///key", "bucket is missing"),
        ("az:///key", "container is missing"),
        ("s3://b\u00fccket/key", "letters, digits"),
        ("s3://-bucket/key", "letters, digits"),
        ("s3://bu\ncket/key", "letters, digits"),
        ("s3://bucket/a\nb", "control characters"),
        ("s3://bucket/a\0b", "control characters"),
        ("s3://bucket/a\x7f", "control characters"),
        ("s3://bucket/a\x1b[2J", "control characters"),
        ("s3://bucket/a\x85b", "control characters"),
        ("s3://bucket/a\u2028b", "control characters"),
        ("s3://bucket/a\u202eb", "control characters"),
        ("s3://bucket/a\udce9", "not UTF-8"),
        ("s3://bucket/a//b", "empty parts"),
        ("s3://bucket//a", "empty parts"),
        ("s3://bucket/a//", "empty parts"),
        ("s3://bucket//", "empty parts"),
        ("s3://bucket/a/../b", "parts that are"),
        ("s3://bucket/../b", "parts that are"),
        ("s3://bucket/a/.", "parts that are"),
        ("gs://bucket/./a", "parts that are"),
        ("az://container/a/../", "parts that are"),
    ],
)
def test_names_that_do_not_arrive_as_written_are_refused_in_one_line_without_secrets(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_url(name)
    text = str(caught.value)
    assert "passw0rd" not in text
    assert text.isprintable()
    assert text.startswith(name.partition(":")[0] + "://")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1:9000", True),
        ("127.255.0.3", True),
        ("[::1]:9000", True),
        ("10.0.0.1", False),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("128.0.0.1", False),
        ("[::2]", False),
        ("0.0.0.0", False),
        ("127.1", False),
    ],
)
def test_only_this_machine_is_asked_without_encryption(
    host: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not allowed:
        with pytest.raises(UsageError, match="AWS_ALLOW_HTTP=true"):
            parse_url(f"http://{host}/x")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert parse_url(f"http://{host}/x").bucket == host


def test_folders_and_buckets_are_no_objects() -> None:
    assert [parse_url(url).is_folder for url in ("s3://b", "s3://b/", "s3://b/k/", "s3://b/k")] == [True] * 3 + [False]
    assert not parse_url("https://h/").is_folder


@pytest.mark.parametrize(
    ("prefix", "entry", "joined"),
    [
        ("s3://b", "e", "s3://b/e"),
        ("s3://b/", "e", "s3://b/e"),
        ("s3://b/p", "e/f", "s3://b/p/e/f"),
        ("s3://b/p?q/", "e", "s3://b/p?q/e"),
        ("https://h/p", "e", "https://h/p/e"),
        ("https://h/p/?sig=x", "e", "https://h/p/e?sig=x"),
        ("https://h", "e", "https://h/e"),
    ],
)
def test_an_entry_is_below_its_folder(prefix: str, entry: str, joined: str) -> None:
    assert join_url(prefix, entry) == joined
    assert base_name(joined) == entry.rpartition("/")[2]


@pytest.mark.parametrize("entry", ["", "/e", "../e", "a//b", "..", "e\n", "a/./b"])
@pytest.mark.parametrize("prefix", ["s3://b/p", "https://h/p?sig=x"])
def test_an_entry_cannot_leave_its_folder(prefix: str, entry: str) -> None:
    if (prefix[0], entry) == ("h", "a//b"):
        return  # servers of the web may tell it from a/b
    with pytest.raises(UsageError):
        join_url(prefix, entry)


def test_an_entry_cannot_replace_the_query() -> None:
    with pytest.raises(UsageError):
        join_url("https://h/p?sig=x", "e?sig=y")


def test_base_names() -> None:
    assert base_name("s3://bucket/a/b.ffr") == "b.ffr"
    assert base_name("s3://bucket/a/b/") == "b"
    assert base_name("s3://bucket") == "bucket"
    assert base_name("https://host/a%2Fb?x=/c") == "a%2Fb"


def test_names_can_be_pickled_and_do_not_show_queries() -> None:
    name = parse_url("https://host/a?sig=s3cret")
    assert pickle.loads(pickle.dumps(name)) == name
    assert "s3cret" not in repr(name) + str(name) + f"{name}"
    assert repr(ObjectName("s3", "b", "k?x")) == "ObjectName('s3://b/k?x')"


@given(st.text(max_size=40))
def test_any_text_is_taken_as_it_is_or_refused(text: str) -> None:
    for scheme in ("s3", "https"):
        url = f"{scheme}://bucket/{text}"
        try:
            name = parse_url(url)
        except UsageError as error:
            assert str(error).isprintable()
        else:
            assert name.url == url
            assert name.name.isprintable() or scheme == "s3"
