"""The lock of a target in a store: every order of the requests of drivers that want it at once."""

from __future__ import annotations

import errno
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from inside import lease

from fffs.errors import AccessError, WriteError

URL = "s3://bucket/photos/.fffs-plan-driver"
DEAD = b'{"owner": "dead"}'
END = 14.0
"""Seconds of the simulated clock after which who holds the lock gives it back."""

STEPS = 14
"""Orders are those of so many steps; both drivers have replaced the lock before."""


class Store:
    """A store of one object, whose requests are steps of drivers, and a clock that goes on while all of them wait.

    In a step one driver runs until it asks the store or waits. ``choices`` says which of those that could run is next,
    and beyond its end the first one; ``asked`` is how many there were at each step.
    """

    def __init__(self, choices: list[int]) -> None:
        self.object: bytes | None = DEAD
        self.now, self.choices, self.asked = 0.0, choices, list[int]()
        self.wakes: dict[str, float] = {}
        self.turns: dict[str, threading.Semaphore] = {}
        self.done = threading.Semaphore(0)
        self.late = ""
        self.held: list[tuple[float, str]] = []
        self.errors: list[BaseException] = []

    def run(self, drivers: dict[str, Callable[[], None]]) -> None:
        """Run drivers to their end, each in a thread, one at a time."""
        threads = []
        for name, drive in drivers.items():
            self.wakes[name], self.turns[name] = 0.0, threading.Semaphore(0)
            threads.append(threading.Thread(target=self._drive, args=(name, drive), name=name))
            threads[-1].start()
        while self.wakes:
            self.now = max(self.now, min(self.wakes.values()))
            able = [name for name in drivers if self.wakes.get(name, END * 9) <= self.now]
            step = len(self.asked)
            self.asked.append(len(able))
            self.turns[able[self.choices[step] if step < len(self.choices) else 0]].release()
            self.done.acquire()
        for thread in threads:
            thread.join()
        assert not self.errors

    def _drive(self, name: str, drive: Callable[[], None]) -> None:
        self.turns[name].acquire()
        try:
            drive()
        except BaseException as error:
            self.errors.append(error)
        del self.wakes[name]
        self.done.release()

    def sleep(self, seconds: float) -> None:
        """Wait for a time of the simulated clock; 0: until it is this driver's turn."""
        name = threading.current_thread().name
        self.wakes[name] = self.now + seconds
        self.done.release()
        self.turns[name].acquire()

    def _ask(self, request: str) -> None:
        """Wait for the turn of a request. The first ``late`` one of driver a takes longer than others wait."""
        late = request == self.late and threading.current_thread().name == "a"
        if late:
            self.late = ""
        self.sleep(1.5 if late else 0)

    def read(self, url: str) -> bytes | None:
        self.sleep(0)
        found = self.object
        if self.late == "read":
            self._ask("read")  # the answer comes late
        return found

    def put(self, url: str, data: bytes, *, new: bool = False) -> None:
        self._ask("new" if new else "replace")
        if new and self.object is not None:
            raise WriteError(errno.EEXIST, url, "there is one")
        self.object = data

    def delete(self, url: str, keys: list[str]) -> None:
        self.sleep(0)
        self.object = None


class End:
    """The event that ends the renewing, at a time of the simulated clock."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def wait(self, seconds: float) -> bool:
        self._store.sleep(seconds)
        return self._store.now > END


def drive(store: Store) -> None:
    """Take the lock as ``lease`` does, and renew it in the same thread."""
    name = threading.current_thread().name
    owner = {"owner": name}
    try:
        begin = lease._take(URL, "photos", owner)
    except WriteError as error:
        assert error.errno == errno.EAGAIN
        return
    store.held.append((store.now, name))
    lease._renew(URL, "photos", owner, End(store), lease._Lease("photos", begin))


def every_order(simulate: Callable[[list[int]], list[int]]) -> int:
    """Call it with the choices of every order; it returns how many it had at each step. Return how many orders."""
    choices: list[int] = []
    for count in itertools.count(1):
        asked = simulate(choices)[:STEPS]
        choices += [0] * (len(asked) - len(choices))
        while choices and choices[-1] + 1 >= asked[len(choices) - 1]:
            choices.pop()
        if not choices:
            return count
        choices[-1] += 1
    raise AssertionError


@pytest.mark.parametrize("late", ["", "read", "replace"])
def test_drivers_that_find_the_lock_of_a_dead_one(monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    """One of them gets it, in every order of their requests, also if one of them takes long."""

    def simulate(choices: list[int]) -> list[int]:
        store = Store(choices)
        store.late = late
        monkeypatch.setattr(lease, "read_object", store.read)
        monkeypatch.setattr(lease, "put_object", store.put)
        monkeypatch.setattr(lease, "delete_objects", store.delete)
        monkeypatch.setattr(lease, "_has_ended", lambda content: content == DEAD)
        monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=store.sleep, monotonic=lambda: store.now))
        monkeypatch.setattr(lease, "_now", lambda: store.now)
        store.run({name: lambda: drive(store) for name in "ab"})
        assert len(store.held) == 1
        assert store.object is None
        return store.asked

    assert every_order(simulate) > 20


def refuses(held: lease._Lease) -> None:
    """Assert that it says that another driver may have it."""
    with pytest.raises(
        WriteError, match=r"photos: cannot write \(its lock was not renewed for 30 seconds, and another"
    ):
        held.left()


def test_who_loses_the_lock_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    another = json.dumps({"owner": "another", "host": "elsewhere", "pid": 7}).encode()
    monkeypatch.setattr(lease, "read_object", lambda url: another)
    monkeypatch.setattr(lease, "RENEW", 0.0)
    held = lease._Lease("photos", lease._now())
    lease._renew(URL, "photos", {"owner": "this"}, threading.Event(), held)
    assert "photos: another process took its lock (process 7 of elsewhere)" in caplog.text
    refuses(held)


def test_who_finds_no_lock_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Another driver took it, and has ended, while this process was suspended."""
    end, store = threading.Event(), dict[str, bytes]()

    def put(url: str, data: bytes, *, new: bool) -> None:
        if not new:
            end.set()
        store[url] = data

    monkeypatch.setattr(lease, "read_object", store.get)
    monkeypatch.setattr(lease, "put_object", put)
    monkeypatch.setattr(lease, "delete_objects", lambda url, keys: store.clear())
    monkeypatch.setattr(lease, "RENEW", 0.0)
    held = lease._Lease("photos", lease._now())
    lease._renew(URL, "photos", {"owner": "this"}, end, held)
    assert caplog.text.count("photos: its lock was gone and is put again") == 1
    refuses(held)


def test_who_renewed_it_late_waits_for_the_next_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver that found it meanwhile puts its own until then."""

    def wait(seconds: float) -> None:
        nonlocal now
        now += 2
        held.renew(now)
        waits.append(held.is_sure)

    now, waits = 0.0, list[bool]()
    monkeypatch.setattr(lease, "_now", lambda: now)
    held = lease._Lease("photos", now)
    monkeypatch.setattr(held._changed, "wait", wait)
    now = 20.0
    assert held.left() == 10
    now = 20.5
    assert held.left() == 30
    now = 60.0
    assert held.left() == 30
    assert waits == [True, False, True]
    held.lose()
    refuses(held)


def test_who_loses_it_while_waiting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(lease, "_now", lambda: now)
    held = lease._Lease("photos", now)
    monkeypatch.setattr(held._changed, "wait", lambda _: held.lose())
    now = 40.0
    refuses(held)


def test_who_may_not_renew_it_is_told_at_once(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(url: str) -> bytes:
        raise AccessError("no access")

    held = lease._Lease("photos", lease._now() - 40)
    monkeypatch.setattr(lease, "read_object", read)
    end = threading.Event()
    renewing = threading.Thread(target=lease._renew, args=(URL, "photos", {"owner": "this"}, end, held))
    renewing.start()
    begin = time.monotonic()
    refuses(held)
    assert time.monotonic() - begin < 30  # FFFS_DEADLINE is 60
    end.set()
    renewing.join()


def test_who_renews_it_no_more_is_told_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    held = lease._Lease("photos", lease._now() - 40)
    refuses(held)


def test_a_lock_that_is_kept_ends_by_itself(slow: Slow) -> None:
    """Requests of who cleaned up, and was cut off, may still be carried out."""
    slow.answers.set()
    with lease.lease(URL, "photos"):
        lease.keep(URL)
        assert "pid" in json.loads(slow[URL])
    assert "pid" not in json.loads(slow[URL])  # by which others see that a process has ended


def test_only_this_process_is_told_how_long_it_has_the_lock(slow: Slow) -> None:
    slow.answers.set()
    assert lease.seconds_left(URL) == math.inf
    with lease.lease(URL, "photos"):
        assert 20 < lease.seconds_left(URL) <= 30
    assert lease.seconds_left(URL) == math.inf


def test_a_lock_that_is_nested_too_deeply_is_one_of_nobody() -> None:
    nested = b"[" * 100_000
    assert not lease._has_ended(nested)
    assert lease._who(nested) == ""
    assert not lease._is_ours(nested, {"owner": "this"})


# ---------------------------------------------------------------- its end


class Slow(dict[str, bytes]):
    """A store whose answers to renewals wait for an event."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def put(self, url: str, data: bytes, *, new: bool = False) -> None:
        if not new:
            self.asked.set()
            self.answers.wait()
        self[url] = data

    def delete(self, url: str, keys: list[str]) -> None:
        del self[url]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """A store that is asked for every renewal at once, and does not answer."""
    store = Slow()
    monkeypatch.setattr(lease, "read_object", store.get)
    monkeypatch.setattr(lease, "put_object", store.put)
    monkeypatch.setattr(lease, "delete_objects", store.delete)
    monkeypatch.setattr(lease, "RENEW", 0.01)
    monkeypatch.setattr(lease, "_PAUSE", 0.01)
    yield store
    store.answers.set()


def ended(store: Slow) -> bool:
    """Let the store answer, and return whether the lock is gone."""
    store.answers.set()
    for thread in threading.enumerate():
        if "_renew" in thread.name:
            thread.join(30)
    return not store


def test_a_renewal_that_takes_long_leaves_no_lock(slow: Slow) -> None:
    with lease.lease(URL, "photos"):
        assert slow.asked.wait(30)
        threading.Timer(0.2, slow.answers.set).start()
    assert not slow


def test_an_interrupt_at_the_end_leaves_no_lock(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lease.lease(URL, "photos"):
        assert slow.asked.wait(30)
        monkeypatch.setattr(threading.Thread, "join", interrupted)
        raise KeyboardInterrupt
    monkeypatch.setattr(threading.Thread, "join", join)
    assert ended(slow)


def test_an_interrupt_at_the_beginning_leaves_no_lock(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(url: str, data: bytes, *, new: bool) -> None:
        slow[url] = data
        raise KeyboardInterrupt

    monkeypatch.setattr(lease, "put_object", put)
    with pytest.raises(KeyboardInterrupt), lease.lease(URL, "photos"):
        pass
    assert ended(slow)


def test_an_interrupt_while_the_store_does_not_answer_ends_it(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes after the test; until then the lock stays."""

    def put(url: str, data: bytes, *, new: bool) -> None:
        raise KeyboardInterrupt

    def read(url: str) -> bytes | None:
        slow.answers.wait(60)
        return None

    monkeypatch.setattr(lease, "put_object", put)
    monkeypatch.setattr(lease, "read_object", read)
    monkeypatch.setattr(lease, "GRACE", 0.01)
    with pytest.raises(KeyboardInterrupt), lease.lease(URL, "photos"):
        pass
    assert not slow.answers.is_set()
    slow.answers.set()
    for thread in threading.enumerate():
        if "_remove" in thread.name:
            thread.join(30)
