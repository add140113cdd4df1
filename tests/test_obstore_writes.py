"""Objects that depend on others replace nothing newer, also where obstore writes; its lost answers are no failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from inside import Answerer, Guard, LastingStore, NewObject, ObstoreWrites, lasting, object_client
from mounting import wait_until
from object_server import Answer, ObjectServer, Request, late, lost, refusal, serving, status
from obstore.exceptions import GenericError
from obstore.store import S3Store
from weed import clear_environment

from fffs.errors import AccessError, UsageError, WriteError

MIB = 1 << 20
GUARD = Guard("state", "mine", "gone")
Give = Callable[[], None]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    with serving() as state:
        clear_environment(monkeypatch, tmp_path)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("FFFS_DEADLINE", "5")
        monkeypatch.setenv("AWS_ENDPOINT_URL", state.url)
        yield state
        object_client._owner.end()


def give_keys(server: ObjectServer, token: str) -> None:
    keys = {"AccessKeyId": "a", "SecretAccessKey": "b" * 20, "Token": token, "Expiration": "2100-01-01T00:00:00Z"}
    server.put("keys", json.dumps(keys).encode())


@pytest.fixture
def role(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys that only obstore gets, those of a container."""
    give_keys(server, "c" * 20)
    (tmp_path / "token").write_text("token")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))


@pytest.fixture(params=["fffs", "obstore"])
def writer(server: ObjectServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who writes."""
    if request.param == "obstore":
        request.getfixturevalue("role")
    else:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s" * 20)
    return str(request.param)


def write(data: bytes, guard: Guard | None = None, new: bool = False) -> None:
    with NewObject("s3://b/x", guard) as output:
        output.replaces = not new
        with output.raw() as stream:
            stream.write(data)
        output.commit()


# ---------------------------------------------------------------- objects that depend on others


@pytest.mark.parametrize("before", [None, b"older"])
@pytest.mark.parametrize("conditions", [True, False])
@pytest.mark.parametrize("size", [1, 9 * MIB])
def test_a_request_that_a_store_takes_late_replaces_nothing_newer(
    server: ObjectServer, writer: str, size: int, conditions: bool, before: bytes | None
) -> None:
    """As of a task whose plan has been replaced and committed since the request was refused for the first time."""

    def busy(_: Request, answer: Answer) -> None:
        server.put("b/state", b"another's")
        server.put("b/x", b"newer")
        answer.status = 503

    server.conditions = conditions
    server.put("b/state", b"this is mine")
    if before:
        server.put("b/x", before)
    server.writing["complete"] = server.writing["put"] = [busy]
    with pytest.raises(UsageError, match="s3://b/x: gone"):
        write(bytes(size), GUARD)
    assert server.objects["/b/x"] == b"newer"
    assert server.uploads == {}


@pytest.mark.parametrize("state", [None, b"another's"])
@pytest.mark.parametrize("size", [1, 9 * MIB, 80 * MIB])
def test_an_object_whose_guard_changes_while_it_is_sent_does_not_appear(
    server: ObjectServer, writer: str, size: int, state: bytes | None
) -> None:
    def change(*_: object) -> None:
        server.objects.pop("/b/state")
        if state:
            server.put("b/state", state)

    server.put("b/state", b"this is mine")
    parts = size > (64 if writer == "obstore" else 8) * MIB
    server.writing["part" if parts else "look"] = [change]
    with pytest.raises(UsageError, match="s3://b/x: gone"):
        write(bytes(size), GUARD)
    assert "/b/x" not in server.objects
    assert server.uploads == {}


@pytest.mark.parametrize("state", [b"mine", b"0" * (3 << 20) + b"mine"])
def test_a_guard_may_be_large(server: ObjectServer, writer: str, state: bytes) -> None:
    server.put("b/state", state)
    write(b"1", GUARD)
    assert server.objects["/b/x"] == b"1"
    for other in (b"", b"ine", state + b"s", None):
        server.objects.pop("/b/state")
        if other is not None:
            server.put("b/state", other)
        with pytest.raises(UsageError, match="s3://b/x: gone"):
            write(b"2", GUARD)
    assert server.objects["/b/x"] == b"1"


@pytest.mark.parametrize("newer", [None, b"newer"])
@pytest.mark.parametrize("size", [1, 9 * MIB, 80 * MIB])
def test_what_others_put_or_removed_meanwhile_is_replaced_by_who_may(
    server: ObjectServer, writer: str, size: int, newer: bytes | None
) -> None:
    def change(*_: object) -> None:
        server.objects.pop("/b/x", None)
        if newer:
            server.put("b/x", newer)

    server.put("b/state", b"this is mine")
    for before in (None, b"older"):
        server.objects.pop("/b/x", None)
        if before:
            server.put("b/x", before)
        server.writing["complete"] = server.writing["put"] = [change]
        write(bytes(size), GUARD)
        assert server.objects["/b/x"] == bytes(size)
        assert server.uploads == {}


def test_an_object_that_never_stays_as_it_is_seen(server: ObjectServer, writer: str) -> None:
    count = iter(range(1000))

    def change(*_: object) -> None:
        server.put("b/x", b"newer %d" % next(count))

    server.put("b/state", b"this is mine")
    server.writing["put"] = [change] * 100
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(b"1", GUARD)
    assert server.objects["/b/x"] == b"newer 2"


# ---------------------------------------------------------------- what obstore writes


@pytest.mark.usefixtures("role")
@pytest.mark.parametrize("size", [1, 80 * MIB])
def test_an_existing_object_and_lost_answers(server: ObjectServer, size: int) -> None:
    write(b"1" * size)
    assert server.objects["/b/x"] == b"1" * size
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(b"2" * size, new=True)
    assert server.objects["/b/x"] == b"1" * size and server.uploads == {}
    for new in (True, False):
        server.objects.pop("/b/x")
        server.writing["put"], server.writing["complete"] = [lost], [lost]
        server.requests.clear()
        write(b"3" * size, new=new)
        assert server.objects["/b/x"] == b"3" * size
        looked_for = [request for request in server.requests if request.method == "GET" and request.path == "/b/x"]
        assert looked_for or not new
        assert all(request.end - request.start <= 8 * MIB for request in looked_for)  # a slow line brings it in time


@pytest.mark.usefixtures("role")
@pytest.mark.parametrize("new", [True, False])
def test_a_lost_answer_of_a_store_that_then_refuses_the_request(server: ObjectServer, new: bool) -> None:
    """As Azure refuses a list of blocks that it has put."""
    server.writing["complete"] = [lost, refusal(400, "InvalidBlockList")]
    write(bytes(80 * MIB), new=new)
    assert server.objects["/b/x"] == bytes(80 * MIB)
    server.writing["complete"] = [refusal(400, "InvalidBlockList")]
    with pytest.raises(WriteError, match="InvalidBlockList"):
        write(b"1" * 80 * MIB)
    assert server.objects["/b/x"] == bytes(80 * MIB)


@pytest.mark.usefixtures("role")
@pytest.mark.parametrize("size", [1, 80 * MIB])
def test_an_object_that_appears_while_a_new_one_is_sent_stays(server: ObjectServer, size: int) -> None:
    def appear(*_: object) -> None:
        server.put("b/x", b"other")

    server.writing["part" if size > MIB else "put"] = [appear]
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(bytes(size), new=True)
    assert server.objects["/b/x"] == b"other" and server.uploads == {}


@pytest.mark.usefixtures("role")
@pytest.mark.parametrize("conditions", [False, None])
def test_a_store_without_conditions_for_obstore(server: ObjectServer, conditions: bool | None) -> None:
    server.conditions = conditions
    write(b"1", new=True)
    assert server.objects["/b/x"] == b"1"
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(b"2", new=True)
    assert server.objects["/b/x"] == b"1"


@pytest.mark.usefixtures("role")
def test_a_store_that_is_busy_for_longer_than_obstore_tries(server: ObjectServer) -> None:
    server.writing["put"] = [status(503)] * 10
    write(b"1")
    server.writing["look"] = [status(503)] * 10
    write(b"2")
    assert server.objects["/b/x"] == b"2"


@pytest.mark.usefixtures("role")
def test_a_store_that_is_busy_when_a_lost_answer_is_looked_for(server: ObjectServer) -> None:
    def lose(request: Request, answer: Answer) -> None:
        lost(request, answer)
        server.faults = [status(503)] * 10

    server.writing["put"] = [lose]
    write(b"1", new=True)
    assert server.objects["/b/x"] == b"1" and server.faults == []


@pytest.mark.usefixtures("role")
def test_a_refusal_of_obstore_is_not_repeated(server: ObjectServer) -> None:
    server.writing["put"] = [refusal(400, "InvalidRequest")] * 2
    with pytest.raises(WriteError, match="InvalidRequest"):
        write(b"1")
    assert len(server.writing["put"]) == 1


def test_requests_with_many_bytes_have_more_time_than_others(server: ObjectServer, tmp_path: Path) -> None:
    def make(timeout: str) -> S3Store:
        return S3Store(
            "b",
            endpoint=server.url,
            access_key_id="a",
            secret_access_key="b" * 20,
            client_options={"allow_http": True, "timeout": timeout},
            retry_config={"max_retries": 0},
        )

    for size, put in ((2 << 20, True), (1, False)):
        (tmp_path / "file").write_bytes(bytes(size))
        writes = ObstoreWrites(LastingStore(partial(make, "1s")), LastingStore(partial(make, "30s")))
        server.writing["put"] = [late(2)]
        with (tmp_path / "file").open("rb") as file:
            try:
                writes.put_file("x", file, {}, lambda: None, 0)
                assert put
            except GenericError:
                assert not put


# ---------------------------------------------------------------- machines that sleep


@pytest.mark.usefixtures("role")
def test_a_role_is_asked_for_keys_again_after_the_machine_slept(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answerer = Answerer()

    def token() -> str:
        asked = {"do": "sign", "scheme": "s3", "bucket": "b", "key": "x", "seconds": 600}
        return parse_qs(urlsplit(answerer.answer(asked)["url"]).query)["X-Amz-Security-Token"][0]

    assert token() == "c" * 20
    give_keys(server, "d" * 20)
    assert token() == "c" * 20  # they have not ended
    slept = SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic)
    monkeypatch.setattr(lasting, "time", slept)
    assert token() == "d" * 20


def test_a_store_that_cannot_be_made_anew_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network may need a while after the machine slept."""
    made = [AccessError("no credentials were found"), "new", AccessError("no credentials were found"), "old"]

    def make() -> str:
        if isinstance(result := made.pop(), Exception):
            raise result
        return str(result)

    store = LastingStore(make)
    assert store.get() == "old"
    monkeypatch.setattr(lasting, "time", SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic))
    assert store.get() == "old"
    assert store.get() == store.get() == "new"
    with pytest.raises(AccessError):
        LastingStore(make).get()


@pytest.mark.usefixtures("role")
def test_all_keys_are_signed_with_one_attempt_to_make_a_store_anew(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may wait for a service that does not answer."""
    answerer, asked = Answerer(), {"scheme": "s3", "bucket": "b", "key": "", "seconds": 600}
    assert answerer.answer({"do": "sign", **asked})["url"]
    made: list[int] = []

    def make() -> None:
        made.append(0)
        raise AccessError("no credentials were found")

    monkeypatch.setattr(answerer._store("s3", "b"), "_make", make)
    monkeypatch.setattr(lasting, "time", SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic))
    assert len(answerer.answer({"do": "sign all", **asked, "keys": ["x"] * 20})["urls"]) == 20
    assert len(made) == 1


# ---------------------------------------------------------------- writers that are interrupted

PROGRAM = """
import fffs, sys
with fffs.FileWriter("s3://b/x.ffr", 1) as writer:
    writer.write_one(bytes(80 << 20))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_writer_that_ends_leaves_no_upload(server: ObjectServer, writer: str, sent: signal.Signals) -> None:
    server.writing["part"] = [late(0.3)] * 12
    with subprocess.Popen([sys.executable, "-c", PROGRAM]) as process:
        wait_until(lambda: any(request.kind == "part" for request in list(server.requests)), 10)
        process.send_signal(sent)
        assert process.wait(20) != 0
    wait_until(lambda: not server.uploads)
    assert "/b/x.ffr" not in server.objects


@pytest.mark.parametrize("size", [20 * MIB, 80 * MIB])
@pytest.mark.parametrize("busy", [False, True])
def test_what_is_interrupted_in_a_process_that_goes_on_does_not_appear(
    server: ObjectServer, writer: str, busy: bool, size: int, request: pytest.FixtureRequest
) -> None:
    """As in a notebook. Other files of the process get the numbers of those that it had open."""
    is_interrupted = threading.Event()

    def handle(*_: object) -> None:
        if not is_interrupted.is_set():
            is_interrupted.set()
            raise KeyboardInterrupt

    def fault(request: Request, answer: Answer) -> None:
        is_interrupted.wait(30)  # the signal may come late on a busy machine
        (status(503) if busy else late(1.0))(request, answer)

    def interrupt(request: Request, answer: Answer) -> None:
        while not is_interrupted.is_set():  # one that comes right before a wait is seen when that ends
            os.kill(os.getpid(), signal.SIGINT)
            is_interrupted.wait(1)
        fault(request, answer)

    server.writing["put"] = server.writing["part"] = [interrupt] + [fault] * 12
    before = signal.signal(signal.SIGINT, handle)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        write(bytes(size))
    with contextlib.ExitStack() as others:
        for _ in range(40):
            others.enter_context(open(__file__, "rb"))
        time.sleep(1.5)
    wait_until(lambda: not server.uploads)
    if size > 64 * MIB or (busy and writer == "fffs"):  # otherwise all of it was handed over before the interrupt
        assert "/b/x" not in server.objects
    assert not any(server.objects.get("/b/x", b""))
    server.writing.clear()
    write(b"another")
    assert server.objects["/b/x"] == b"another"
