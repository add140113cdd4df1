"""Lists of S3: stores of each version, what comes in place of a page, and lists that come to no end."""

from __future__ import annotations

import http.server
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from inside import list_objects, object_client, parse_url, without_markers
from weed import clear_environment

import fffs
from fffs.errors import AccessError, ReadError, SourceNotFoundError, UsageError

Query = dict[str, str]
KEYS = [
    "raw/a",
    "raw/b b",
    "raw/b+b",
    "raw/c&c",
    "raw/sub/1",
    "raw/sub/2",
    "raw/sub/3",
    "raw/é",
    "raw/\N{GRINNING FACE}",
]
REST = "<LastModified>2026-01-01T00:00:00.123456789Z</LastModified><ETag>&quot;x&quot;</ETag><Size>5</Size>"
BUSY = "<Error><Code>SlowDown</Code></Error>"
ENDED = "<Error><Code>ExpiredToken</Code></Error>"
STATUS = {BUSY: 503, ENDED: 400}
PLAIN = ["raw/a", "raw/b b", "raw/b+b", "raw/c&c", "raw/sub/", "raw/é", "raw/\N{GRINNING FACE}"]


class Server(http.server.ThreadingHTTPServer):
    """Answers each request for a list with what ``page`` returns for its query; None is status 404."""

    page: Callable[[Query], str | None]
    queries: list[Query]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))
        self.server.queries.append(query)
        page = self.server.page(query)
        body = ("" if page is None else page).encode()
        self.send_response(404 if page is None else STATUS.get(page, 200))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    clear_environment(monkeypatch, tmp_path)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.queries = []
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            object_client._owner.end()
            server.shutdown()
            thread.join()


def listed(delimiter: bool = False, url: str = "s3://bucket/raw/") -> list[str]:
    return [key for key, _, _ in list_objects(parse_url(url), delimiter)]


def shown(keys: list[str], more: str, next_one: str = "") -> str:
    """Return a page. more: "true" or "false". next_one: elements that say where the next page begins."""
    objects = "".join(f"<Contents><Key>{escape(key)}</Key>{REST}</Contents>" for key in keys if key[-1] != "/")
    folders = "".join(
        f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in keys if key[-1] == "/"
    )
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{more}</IsTruncated>{next_one}{objects}{folders}</ListBucketResult>"
    )


def paged(version: int, keys: list[str], size: int = 2, with_marker: bool = False) -> Callable[[Query], str]:
    """Return what lists keys as a store that knows one version of lists only."""

    def page(query: Query) -> str:
        found = [key for key in keys if key.startswith(query["prefix"])]
        if "delimiter" in query:
            parts = [key[len(query["prefix"]) :].partition("/") for key in found]
            found = list(dict.fromkeys(query["prefix"] + name + slash for name, slash, _ in parts))
        if version == 1:
            after = query.get("marker", "")
        else:
            after = urllib.parse.unquote(query.get("continuation-token", "")) or query.get("start-after", "")
        rest = [key for key in found if key > after]
        if len(rest) <= size:
            return shown(rest, "false")
        last = rest[size - 1]
        token = f"<NextContinuationToken>{urllib.parse.quote(last)}</NextContinuationToken>"
        marker = f"<NextMarker>{escape(last)}</NextMarker>" if with_marker else ""
        return shown(rest[:size], "true", token if version == 2 else marker)

    return page


@pytest.mark.parametrize(("version", "with_marker"), [(2, False), (1, False), (1, True)])
@pytest.mark.parametrize(("delimiter", "wanted"), [(False, KEYS), (True, PLAIN)])
def test_stores_of_both_versions_are_listed_completely(
    server: Server, version: int, with_marker: bool, delimiter: bool, wanted: list[str]
) -> None:
    server.page = paged(version, KEYS, with_marker=with_marker)
    assert listed(delimiter) == wanted
    assert [entry[1:] for entry in list_objects(parse_url("s3://bucket/raw/"), False)] == [(5, '"x"')] * len(KEYS)
    assert all(query["prefix"] == "raw/" for query in server.queries)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("delimiter", "wanted"), [(False, KEYS), (True, PLAIN)])
def test_a_listing_that_is_begun_again_goes_on_where_it_was(
    server: Server, version: int, delimiter: bool, wanted: list[str]
) -> None:
    for taken in range(1, len(wanted)):
        server.page = paged(version, KEYS)
        listing = list_objects(parse_url("s3://bucket/raw/"), delimiter)
        first = [next(listing)[0] for _ in range(taken)]
        object_client._owner.end()
        assert first + [key for key, _, _ in listing] == wanted


def test_a_prefix_with_odd_characters_reaches_the_store(server: Server) -> None:
    server.page = paged(2, ["a&b=c d+é/1"])
    assert listed(url="s3://bucket/a&b=c d+é/") == ["a&b=c d+é/1"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_empty_objects_with_names_of_folders_are_left_out(size: int) -> None:
    keys = ["a", "a!", "a-", "a-/x", "a-b", "a.txt", "a/b", "a/b-c", "a/b/x", "a0", "b", "b.txt", "c", "c/d/e"]
    full = {"a.txt", "a-b", "a/b-c", "b.txt"} | {key for key in keys if key[-1] in "xe"}
    entries = [(key, int(key in full), "", 0) for key in keys]
    pages = [entries[start : start + size] for start in range(0, len(keys), size)]
    left = [entry for page in without_markers(pages) for entry in page]
    markers = {"a", "a-", "a/b", "c"}
    assert [entry[0] for entry in left] == [key for key in keys if key not in markers]


def test_pages_stay_small_while_a_marker_may_follow() -> None:
    many = [(f"a-{number:06}", 1, "", 0) for number in range(25_000)]
    pages = [[("a", 0, "", 0), *many[:999]], *(many[start : start + 1000] for start in range(999, len(many), 1000))]
    found = list(without_markers([*pages, [("a/x", 1, "", 0)]]))
    assert max(map(len, found)) <= 1000
    assert [entry for page in found for entry in page] == [("a", 0, "", 0), *many, ("a/x", 1, "", 0)]


INSTEAD = {
    "error": "<Error><Code>AccessDenied</Code><Message>No</Message></Error>",
    "html": "<html><p>Please sign in</html>",
    "document": "<Document/>",
    "empty": "",
    "cut": shown(["raw/a"], "false")[:-30],
    "no end": shown(["raw/a"], "").replace("<IsTruncated></IsTruncated>", ""),
    "nowhere": shown([], "true"),
    "size": shown(["raw/a"], "false").replace("<Size>5<", "<Size>-5<"),
    "large": shown(["raw/a"], "false").replace("<Size>5<", f"<Size>{2**63}<"),
    "digits": shown(["raw/a"], "false").replace("<Size>5<", "<Size>\u0665<"),
    "time": shown(["raw/a"], "false").replace("2026-01-01T", ""),
    "no key": shown(["raw/a"], "false").replace("Key>", "Name>"),
    "entities": '<!DOCTYPE x [<!ENTITY a "raw/a">]>' + shown(["raw/X"], "false").replace("raw/X", "&a;"),
}


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("delimiter", [False, True])
@pytest.mark.parametrize("instead", INSTEAD)
def test_what_is_no_page_ends_no_list(server: Server, instead: str, delimiter: bool, when: str) -> None:
    pages = paged(2, [f"raw/{number}" for number in range(10)], 4)
    server.page = lambda query: INSTEAD[instead] if when == "at once" or len(server.queries) > 2 else pages(query)
    message = "no list: HTTP status 200: <html><p>Please sign in" if instead == "html" else "s3://"
    with pytest.raises(ReadError, match=message) as caught:
        listed(delimiter)
    assert "\n" not in str(caught.value)


def test_a_store_that_repeats_a_page_is_not_listed_for_ever(server: Server) -> None:
    def token() -> str:
        return f"<NextContinuationToken>{len(server.queries)}</NextContinuationToken>"

    pages: list[Callable[[Query], str]] = [
        lambda _: shown(["raw/a", "raw/b"], "true", token()),
        lambda _: shown(["raw/a", "raw/b"], "true", "<NextContinuationToken>same</NextContinuationToken>"),
        lambda _: shown([], "true", "<NextContinuationToken>same</NextContinuationToken>"),
        lambda _: shown(["raw/a"], "true"),
        lambda _: shown([f"raw/{len(server.queries) % 3}"], "true", token()),
    ]
    for page in pages:
        server.page = page
        server.queries.clear()
        with pytest.raises(ReadError, match="lists a page of raw/ twice"):
            listed()
        assert len(server.queries) < 6


def test_pages_that_overlap_give_each_object_once(server: Server) -> None:
    token = "<NextContinuationToken>next</NextContinuationToken>"
    server.page = lambda query: (
        shown(["raw/b", "raw/c"], "false")
        if "continuation-token" in query
        else shown(["raw/a", "raw/b"], "true", token)
    )
    assert listed() == ["raw/a", "raw/b", "raw/c"]


@pytest.mark.parametrize(("keys", "url"), [(KEYS, "s3://bucket/raw/"), (["0", "1", "2"], "s3://bucket/")])
def test_empty_pages_do_not_end_a_list(server: Server, keys: list[str], url: str) -> None:
    pages = paged(2, keys)
    token = "<NextContinuationToken>.</NextContinuationToken>"
    server.page = lambda query: pages(query) if "continuation-token" in query else shown([], "true", token)
    assert listed(url=url) == keys


def test_each_empty_page_is_an_answer_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with many removed versions may send thousands, which take longer than one answer may."""
    asked: list[object] = []
    ask = object_client._ask
    monkeypatch.setattr(object_client, "_ask", lambda *arguments: asked.append(arguments) or ask(*arguments))

    def page(query: Query) -> str:
        number = int(query.get("continuation-token", "0"))
        token = f"<NextContinuationToken>{number + 1}</NextContinuationToken>"
        return shown([], "true", token) if number < 10 else shown(["raw/a"], "false")

    server.page = page
    assert listed() == ["raw/a"]
    assert len(asked) > 10


def test_a_folder_may_be_on_several_pages(server: Server) -> None:
    """As of a store that counts keys, not folders."""

    def page(query: Query) -> str:
        number = int(query.get("continuation-token", "0"))
        token = f"<NextContinuationToken>{number + 1}</NextContinuationToken>"
        return shown(["raw/a/"], "true", token) if number < 3 else shown(["raw/a/", "raw/b"], "false")

    server.page = page
    assert listed(True) == ["raw/a/", "raw/b"]


def test_a_busy_store_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """For FFFS_DEADLINE seconds, also for the first page. A wrong address is given up earlier."""
    server.page = lambda _: BUSY if len(server.queries) < 8 else shown(["raw/a"], "false")
    assert listed() == ["raw/a"]
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    server.page = lambda _: BUSY
    server.queries.clear()
    with pytest.raises(ReadError, match="HTTP status 503: SlowDown"):
        listed()
    assert len(server.queries) < 8


def test_a_folder_that_is_repeated_on_each_page_is_listed_once(server: Server) -> None:
    def page(query: Query) -> str:
        number = int(query.get("continuation-token", "0"))
        token = f"<NextContinuationToken>{number + 1}</NextContinuationToken>"
        return shown(["raw/a/", f"raw/b{number}"], "true" if number < 5 else "false", token)

    server.page = page
    assert listed(True) == ["raw/a/", *(f"raw/b{number}" for number in range(6))]


def test_keys_with_control_characters_are_asked_for_once_more(server: Server) -> None:
    def page(query: Query) -> str:
        if query.get("encoding-type") == "url":
            return shown(["raw%2Fb+b", "raw%2Fb%2Bb", "raw%2Fx%01"], "false", "<EncodingType>url</EncodingType>")
        return shown(["raw/b b", "raw/b+b", "raw/x"], "false").replace("raw/x", "raw/x&#x1;")

    server.page = page
    assert listed() == ["raw/b b", "raw/b+b", "raw/x\x01"]


def test_what_a_store_lists_of_other_folders_does_not_count(server: Server) -> None:
    server.page = lambda _: shown(["ra", "raw", "raw/", "raw/a", "raw/a/b", "raw/a/c", "raw2/a"], "false")
    assert listed(True) == ["raw/a", "raw/a/"]
    assert listed() == ["raw/a", "raw/a/b", "raw/a/c"]


def test_a_page_may_have_more_entries_than_were_asked_for(server: Server) -> None:
    keys = [f"raw/{number:05}" for number in range(2500)]
    server.page = lambda _: shown(keys, "false")
    assert listed() == keys


def test_empty_objects_with_the_name_of_a_folder_are_left_out(server: Server) -> None:
    server.page = lambda _: shown(["raw/a", "raw/a/b", "raw/c"], "false").replace("<Size>5", "<Size>0")
    assert listed() == ["raw/a/b", "raw/c"]
    assert listed(True) == ["raw/a/", "raw/c"]


def test_an_object_whose_key_ends_in_a_slash_is_not_packed(server: Server, tmp_path: Path) -> None:
    server.page = lambda _: shown(["raw/a"], "false").replace("raw/a", "raw/a/")
    with pytest.raises(UsageError, match="raw/a/"):
        fffs.pack_folder("s3://bucket/raw/", tmp_path / "x.ffr")


def test_credentials_that_end_in_the_middle_of_a_list(server: Server) -> None:
    pages = paged(2, KEYS)
    server.page = lambda query: ENDED if len(server.queries) > 2 else pages(query)
    with pytest.raises(AccessError, match="ExpiredToken"):
        listed()


def test_a_missing_bucket(server: Server) -> None:
    server.page = lambda _: None
    with pytest.raises(SourceNotFoundError, match="no such bucket"):
        listed()
