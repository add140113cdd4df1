"""Objects are written complete or not at all, in bounded memory, and no parts stay in the store."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from inside import (
    PackFile,
    PartSizes,
    Sender,
    WrittenRanges,
    delete_objects,
    object_client,
    parse_url,
    part_sender,
)
from object_server import (
    Answer,
    Fault,
    ObjectServer,
    Request,
    late,
    lost,
    not_done,
    refusal,
    reset_after,
    serving,
    status,
)
from weed import Weed, clear_environment, cloud, weed

import fffs
from fffs.errors import AccessError, SourceChangedError, UsageError, WriteError, WriterError
from fffs.ofrecord import OFRecordWriter
from fffs.tfrecord import TFRecordWriter

__all__ = ["cloud", "weed"]  # fixtures
MIB = 1 << 20


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of notes of uploads."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "state" / "fffs" / "uploads"
    object_client._owner.end()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    noise = np.random.default_rng(7).bytes(40 * MIB)
    for k in range(300):
        path = tmp_path / "src" / f"class{k % 3}" / f"{k} ü.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise[k : k + k * 331])
    for k in range(3):
        (tmp_path / "src" / f"large{k}").write_bytes(noise[k * 7 * MIB : k * 7 * MIB + (5 + 9 * k) * MIB + k])
    (tmp_path / "src" / "empty").touch()
    (tmp_path / "src" / "link").symlink_to("large1")
    return tmp_path / "src"


def content(cloud: Weed, key: str) -> bytes | None:
    status, _, body = cloud.request("GET", cloud.bucket, key)
    return body if status == 200 else None


def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fffs", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **more},
    )


def start(code: str) -> subprocess.Popen[bytes]:
    """Start Python code that prints a line when it has come to its point."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its store process."""
    os.kill(process.pid, signal.SIGSTOP)
    for child in children(process.pid):
        os.kill(child, signal.SIGKILL)
    end(process)


def wait_until_none(cloud: Weed, prefix: str) -> None:
    end = time.monotonic() + 30
    while cloud.uploads(prefix) and time.monotonic() < end:
        time.sleep(0.05)
    assert cloud.uploads(prefix) == []


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("options", [(), ("--align",)], ids=["plain", "aligned"])
@pytest.mark.parametrize("jobs", [1, 5])
def test_a_packed_folder_has_the_bytes_of_a_local_one(
    cloud: Weed, source: Path, tmp_path: Path, options: tuple[str, ...], jobs: int
) -> None:
    assert run("pack", source, tmp_path / "p.ffr", *options).returncode == 0
    done = run("pack", source, f"s3://{cloud.bucket}/w/a b+ü.ffr", "--jobs", jobs, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert content(cloud, "w/a b+ü.ffr") == (tmp_path / "p.ffr").read_bytes()
    assert cloud.uploads("w/") == []


@pytest.mark.parametrize("size", [0, 1, 8 * MIB - 32, 8 * MIB - 31, 20 * MIB])
def test_objects_of_one_and_of_several_parts(cloud: Weed, tmp_path: Path, state: Path, size: int) -> None:
    names = (str(tmp_path / "p.ffr"), f"s3://{cloud.bucket}/w/sizes.ffr")
    for name in names:
        with fffs.FileWriter(name, 2) as writer:
            writer.write_one(bytes(size))
            writer.write_one(b"x" * (size // 3))
    assert content(cloud, "w/sizes.ffr") == (tmp_path / "p.ffr").read_bytes()
    assert list(state.glob("*")) == []


def test_the_writers_of_all_formats(cloud: Weed, tmp_path: Path) -> None:
    records = [bytes([k]) * (k * 700_001) for k in range(1, 9)]
    for kind, name in ((TFRecordWriter, "a.tfrecord"), (OFRecordWriter, "part-0")):
        for place in (str(tmp_path), f"s3://{cloud.bucket}/w"):
            with kind(f"{place}/{name}") as writer:
                for record in records:
                    writer.write_one(record)
        assert content(cloud, f"w/{name}") == (tmp_path / name).read_bytes()


def test_conversions_and_dumps(cloud: Weed, tmp_path: Path) -> None:
    records = [bytes([k]) * 900_001 for k in range(20)]
    fffs.utils.dump(records, f"s3://{cloud.bucket}/w/d.ffr", nfiles=1)
    fffs.utils.dump(records, tmp_path / "d.ffr", nfiles=1)
    assert content(cloud, "w/d.ffr") == (tmp_path / "d.ffr").read_bytes()
    for name in ("c.tfrecord", "c.bag", "c.ffr", "part-0"):
        fffs.convert(tmp_path / "d.ffr", tmp_path / name)
        fffs.convert(tmp_path / "d.ffr", f"s3://{cloud.bucket}/c/{name}")
        assert content(cloud, f"c/{name}") == (tmp_path / name).read_bytes()


def test_formats_of_other_libraries_in_stores(cloud: Weed, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for k in range(5):
        (tmp_path / f"f/{k}.bin").write_bytes(bytes([k]) * (k * 1_500_001))
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    place = f"s3://{cloud.bucket}/foreign"
    for ending in ("tar", "parquet", "arrow"):
        fffs.convert(tmp_path / "f.ffr", tmp_path / f"x.{ending}", warn=lambda _: None)
        fffs.convert(tmp_path / "f.ffr", f"{place}/x.{ending}", warn=lambda _: None)
        assert content(cloud, f"foreign/x.{ending}") == (tmp_path / f"x.{ending}").read_bytes()
        fffs.convert(f"{place}/x.{ending}", tmp_path / f"{ending}.ffr")
        with fffs.PackedFolder(tmp_path / f"{ending}.ffr") as pack:
            for k in range(5):
                assert pack.read_one(f"{k}.bin").tobytes() == bytes([k]) * (k * 1_500_001)
    fffs.convert(f"{place}/", tmp_path / "one.ffr", from_="parquet")
    assert (tmp_path / "one.ffr").stat().st_size == (tmp_path / "parquet.ffr").stat().st_size


def test_memory_is_bounded(cloud: Weed, tmp_path: Path) -> None:
    code = """if True:
        import os, re, sys, fffs
        most = 0
        with fffs.FileWriter(sys.argv[1], 400) as writer:
            for k in range(400):
                writer.write_one(bytes(1 << 20))
                most = max(most, os.fstat(writer._file.fd).st_blocks * 512)
        # Not ru_maxrss, which begins with that of the process that started this one.
        print(most, int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) << 10)
        """
    done = subprocess.run(
        [sys.executable, "-c", code, f"s3://{cloud.bucket}/w/long.ffr"], stdout=subprocess.PIPE, check=True
    )
    staged, memory = map(int, done.stdout.split())
    assert staged < 120 * MIB
    assert memory < 700 * MIB


# ---------------------------------------------------------------- what is refused


def test_existing_objects(cloud: Weed, source: Path, tmp_path: Path) -> None:
    name = f"s3://{cloud.bucket}/w/old.ffr"
    cloud.put(cloud.bucket, "w/old.ffr", b"old")
    done = run("convert", source, name)
    assert (done.returncode, done.stderr) == (2, f"fffs: {name}: already exists; --force replaces it\n")
    assert content(cloud, "w/old.ffr") == b"old"
    assert run("convert", source, name, "--force").returncode == 0
    assert content(cloud, "w/old.ffr") != b"old"
    cloud.put(cloud.bucket, "w/old.ffr", b"old")
    assert run("pack", source, name).returncode == 0  # as it replaces a file
    assert content(cloud, "w/old.ffr") != b"old"


@pytest.mark.parametrize("size", [1, 20 * MIB], ids=["whole", "in parts"])
def test_the_second_of_two_writers_fails(cloud: Weed, state: Path, size: int) -> None:
    writer = fffs.FileWriter(f"s3://{cloud.bucket}/w/two.ffr", 1)
    writer.keep_existing()
    writer.write_one(bytes(size))
    cloud.put(cloud.bucket, "w/two.ffr", b"the first")
    with pytest.raises(WriteError, match=r"s3://test/w/two.ffr: .*another process made it meanwhile"):
        writer.close()
    assert content(cloud, "w/two.ffr") == b"the first"
    assert cloud.uploads("w/") == []
    assert list(state.glob("*")) == []
    cloud.delete(cloud.bucket, "w/two.ffr")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pack", "SRC", "s3://test/w/v.ffr", "--verity"), "fs-verity is for local files; omit --verity"),
        (("convert", "SRC", "s3://test/w/v.ffr", "--verify"), "cannot be read before it is in place"),
        (("pack", "SRC", "https://127.0.0.1/v.ffr"), "cannot write to an address of the web"),
        (("pack", "SRC", "s3://test/w/v"), "must end in .ffr"),
        (
            ("convert", "FILE", "s3://test/w/", "--to", "tfrecord", "--part-size", "20"),
            "cannot put several objects in place",
        ),
        (("convert", "FILE", "s3://test/w/x.bag", "--layout", "v3"), "two files; write layout v1"),
    ],
)
def test_what_an_object_cannot_have(
    cloud: Weed, source: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    with fffs.FileWriter(tmp_path / "f.ffr", 1) as writer:
        writer.write_one(b"1")
    done = run(*({"SRC": source, "FILE": tmp_path / "f.ffr"}.get(word, word) for word in arguments))
    assert done.returncode == UsageError.exit_code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert content(cloud, "w/v.ffr") is None


def test_checksums_of_the_object_that_is_there_are_not_taken_for_those_of_a_new_one(cloud: Weed) -> None:
    name = f"s3://{cloud.bucket}/w/kept.bag"
    cloud.put(cloud.bucket, "w/kept.bag", b"old")
    cloud.put(cloud.bucket, "w/kept.bag.fffs-crc", b"of the old")
    with pytest.raises(UsageError, match=r"w/kept.bag: remove s3://test/w/kept.bag.fffs-crc first"):
        TFRecordWriter(name)
    assert content(cloud, "w/kept.bag") == b"old"


def test_a_source_is_not_replaced(cloud: Weed, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        writer.write_one(b"1")
    cloud.put(cloud.bucket, "own/a.ffr", (tmp_path / "a.ffr").read_bytes())
    for source in ("own/a.ffr", "own/"):
        with pytest.raises(UsageError, match="is the source itself, or a part of it"):
            fffs.convert(f"s3://{cloud.bucket}/{source}", f"s3://{cloud.bucket}/own/a.ffr", force=True)


def test_nothing_is_written_into_the_folder_of_objects_that_is_read(cloud: Weed, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        writer.write_one(b"1")
    fffs.convert(tmp_path / "a.ffr", tmp_path / "a.tfrecord")
    fffs.convert(tmp_path / "a.ffr", tmp_path / "a.parquet")
    for name in ("part.tfrecord", "table/a.parquet"):
        ending = Path(name).suffix
        cloud.put(cloud.bucket, f"in/{name}", (tmp_path / f"a{ending}").read_bytes())
    place = f"s3://{cloud.bucket}/in"
    with pytest.raises(UsageError, match="would become a part of the source"):
        fffs.convert(f"{place}/", f"{place}/all.tfrecord", from_="tfrecord")
    for name in ("all.parquet", "x.ffr", "below/x.ffr"):
        with pytest.raises(UsageError, match="is in the source"):
            fffs.convert(f"{place}/table/", f"{place}/table/{name}", column="data", force=True)
    with pytest.raises(UsageError, match="is the source itself"):
        fffs.convert(f"{place}/table/a.parquet", f"S3://{cloud.bucket}/in/table/a.parquet", column="data", force=True)
    fffs.convert(f"{place}/table/", f"{place}/table.ffr")
    with fffs.PackedFolder(f"{place}/table.ffr") as pack:
        assert pack.num_files() == 1


def test_no_access(cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-secret-000")
    with pytest.raises(AccessError) as raised:
        fffs.FileWriter(f"s3://{cloud.bucket}/x.ffr", 1)
    assert "not-the-right" not in str(raised.value)


# ---------------------------------------------------------------- what is left


def _half(cloud: Weed, key: str) -> fffs.FileWriter:
    """Return a writer that has begun an upload."""
    writer = fffs.FileWriter(f"s3://{cloud.bucket}/{key}", 2)
    writer.write_one(np.random.default_rng(1).bytes(30 * MIB))
    assert cloud.uploads(key) == [key]
    return writer


@pytest.mark.parametrize("note", [b"[]", b"\xff", b'{"url": 1}', b"[" * 60_000])
def test_damaged_notes_are_left_alone(cloud: Weed, state: Path, note: bytes) -> None:
    state.mkdir(0o700, parents=True)
    (state / "damaged.json").write_bytes(note)
    with _half(cloud, "l/damaged.ffr") as writer:
        writer.write_one(b"")
    assert [path.name for path in state.iterdir()] == ["damaged.json"]


def test_an_exception_aborts(cloud: Weed, state: Path) -> None:
    with pytest.raises(ZeroDivisionError), _half(cloud, "l/exception.ffr"):
        raise ZeroDivisionError
    assert cloud.uploads("l/") == []
    assert list(state.glob("*")) == []


def test_collection_aborts(cloud: Weed) -> None:
    writer = _half(cloud, "l/garbage.ffr")
    del writer
    gc.collect()
    assert cloud.uploads("l/") == []


def test_a_writer_that_is_not_closed_at_exit_aborts(cloud: Weed) -> None:
    code = """if True:
        import fffs, builtins
        builtins.kept = writer = fffs.FileWriter("s3://test/l/exit.ffr", 2)
        writer.write_one(bytes(30 << 20))
        """
    subprocess.run([sys.executable, "-c", code], check=True)
    assert cloud.uploads("l/") == []


def test_a_child_of_fork_aborts_nothing(cloud: Weed) -> None:
    writer = _half(cloud, "l/fork.ffr")
    child = os.fork()
    if child == 0:
        try:
            writer.write_one(b"1")
        except WriterError:
            writer.discard()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    writer.write_one(b"2")
    writer.close()
    assert len(content(cloud, "l/fork.ffr") or b"") > 30 * MIB


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_abort(cloud: Weed, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "many").mkdir()
    for k in range(20):  # so much that it is not done when the server tells of the upload
        with (tmp_path / "many" / f"{k}").open("wb") as file:
            file.truncate(200 * MIB)
    command = [sys.executable, "-m", "fffs", "pack", str(tmp_path / "many"), f"s3://{cloud.bucket}/l/signal.ffr"]
    process = subprocess.Popen(command)
    while not cloud.uploads("l/") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(60) == (130 if number == signal.SIGINT else 128 + number)
    assert cloud.uploads("l/") == []
    assert content(cloud, "l/signal.ffr") is None


WRITER = """if True:
    import sys, fffs
    writer = fffs.FileWriter("s3://test/l/killed.ffr", 2)
    writer.write_one(bytes(30 << 20))
    print("ready", flush=True)
    sys.stdin.read()
    """


def test_a_killed_writer_leaves_nothing(cloud: Weed) -> None:
    process = start(WRITER)
    assert cloud.uploads("l/") == ["l/killed.ffr"]
    end(process)
    wait_until_none(cloud, "l/")  # by the store process


def test_what_is_left_when_all_processes_are_killed_is_aborted_by_the_next_writer(cloud: Weed, state: Path) -> None:
    process = start(WRITER)
    kill_all(process)
    assert cloud.uploads("l/") == ["l/killed.ffr"]
    live = _half(cloud, "l/other.ffr")
    assert cloud.uploads("l/") == ["l/other.ffr"]
    live.write_one(b"2")
    live.close()
    assert list(state.glob("*")) == []


def test_an_upload_without_a_noted_id_is_found(cloud: Weed, state: Path) -> None:
    process = start(WRITER)
    kill_all(process)
    [note] = state.glob("*")
    note.write_text(json.dumps({**json.loads(note.read_text()), "upload": None}))
    fffs.FileWriter(f"s3://{cloud.bucket}/l/other.ffr", 1).discard()
    assert cloud.uploads("l/") == []


def test_an_upload_of_another_machine_or_server_is_left_alone(cloud: Weed, state: Path) -> None:
    process = start(WRITER)
    kill_all(process)
    [note] = state.glob("*")
    was = json.loads(note.read_text())
    for change in ({"host": "another"}, {"place": "http://127.0.0.1:1/test/l/killed.ffr"}):
        note.write_text(json.dumps({**was, **change}))
        fffs.FileWriter(f"s3://{cloud.bucket}/l/other.ffr", 1).discard()
        assert cloud.uploads("l/") == ["l/killed.ffr"]
    note.write_text(json.dumps(was))
    fffs.FileWriter(f"s3://{cloud.bucket}/l/other.ffr", 1).discard()
    assert cloud.uploads("l/") == []


def test_a_live_writer_of_the_same_object_is_left_alone(cloud: Weed) -> None:
    process = start(WRITER)
    _half(cloud, "l/second.ffr").discard()
    assert cloud.uploads("l/killed") == ["l/killed.ffr"]
    process.communicate()
    assert cloud.uploads("l/") == []


def test_a_store_process_that_is_killed_does_not_end_an_upload(cloud: Weed) -> None:
    writer = _half(cloud, "l/lost.ffr")
    for child in children(os.getpid()):
        os.kill(child, signal.SIGKILL)
    writer.write_one(bytes(30 * MIB))
    writer.close()
    assert len(content(cloud, "l/lost.ffr") or b"") > 60 * MIB


def children(pid: int) -> list[int]:
    """Return the store processes of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"store_process" in command:
            found.append(int(stat.parent.name))
    assert found
    return found


# ---------------------------------------------------------------- parts


def test_ten_thousand_parts_are_enough() -> None:
    five_tib = 5 << 40
    assert PartSizes().number(five_tib - 1) < 10_000
    for total in (0, 1, 8 * MIB, 10**9, 10**12, five_tib):
        sizes = PartSizes(total)
        assert sizes.number(max(total * 11 // 10 - 1, 0)) < 10_000
    for sizes in (PartSizes(), PartSizes(10**12)):
        end = 0
        for number in range(10_000):
            begin, after = sizes.range(number)
            assert (begin, sizes.number(begin), sizes.number(after - 1)) == (end, number, number)
            assert after - begin >= 5 * MIB
            end = after


def test_a_part_is_complete_when_all_its_bytes_are_written_in_any_order() -> None:
    rng = np.random.default_rng(3)
    end = 40 * MIB
    edges = np.unique(np.concatenate([[0, end], rng.integers(0, end, 500)])).tolist()
    pieces = list(itertools.pairwise(edges))
    rng.shuffle(pieces)
    written, missing, found = WrittenRanges(PartSizes()), [8 * MIB] * 5, []
    for begin, after in pieces:
        for number in range(5):
            missing[number] -= max(min(after, (number + 1) * 8 * MIB) - max(begin, number * 8 * MIB), 0)
        found += written.add(begin, after - begin)
        assert sorted(found) == [number for number in range(5) if not missing[number]]
    assert written.add(0, end) == []


# ---------------------------------------------------------------- faults


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    with serving() as state:
        clear_environment(monkeypatch, tmp_path)
        for name, value in {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s" * 20, "FFFS_DEADLINE": "3"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", state.url)
        yield state
        object_client._owner.end()


def write(server: ObjectServer, size: int, keep: bool = False, byte: bytes = b"\0") -> None:
    with fffs.FileWriter("s3://b/x.ffr", 2) as writer:
        if keep:
            writer.keep_existing()
        writer.write_one(byte * size)
        writer.write_one(b"2")


FAULTS = [status(500), status(503), status(429), status(400, X="RequestTimeout"), not_done, late(0.3)]
# What is asked for is done, but the answer does not arrive, or not all of it.
DONE = [lost, reset_after(0), reset_after(20)]
FAULTS += DONE
FAULTS[3] = refusal(400, "BadDigest")


@pytest.mark.parametrize("fault", range(len(FAULTS)))
@pytest.mark.parametrize("kind", ["begin", "part", "complete", "put"])
def test_requests_are_repeated(server: ObjectServer, tmp_path: Path, state: Path, kind: str, fault: int) -> None:
    server.writing[kind] = [FAULTS[fault], FAULTS[fault]]
    write(server, 100 if kind == "put" else 9 * MIB)
    with fffs.FileWriter(tmp_path / "x.ffr", 2) as writer:
        writer.write_one(bytes(100 if kind == "put" else 9 * MIB))
        writer.write_one(b"2")
    assert server.objects["/b/x.ffr"] == (tmp_path / "x.ffr").read_bytes()
    if not (kind == "begin" and FAULTS[fault] in DONE):  # the store keeps one that nobody knows
        assert server.uploads == {}
    assert list(state.glob("*")) == []


@pytest.mark.parametrize("done", [False, True])
def test_an_answer_that_is_not_of_the_store(server: ObjectServer, done: bool) -> None:
    """As a page of a proxy. There are stores without ETags, so the object is looked for."""

    def page(request: Request, answer: Answer) -> None:
        if done:
            server.put("b/x.ffr", request.body)
        answer.status, answer.body = 200, b"<html>Welcome</html>"

    server.writing["put"] = [page]
    with contextlib.nullcontext() if done else pytest.raises(WriteError, match="Welcome"):
        write(server, 100)
    assert ("/b/x.ffr" in server.objects) == done


@pytest.mark.parametrize("size", [100, 9 * MIB])
@pytest.mark.parametrize("allowed", ["", "true"])
def test_this_machine_is_not_written_to_through_a_proxy(
    server: ObjectServer, state: Path, monkeypatch: pytest.MonkeyPatch, size: int, allowed: str
) -> None:
    """Neither by this process nor by obstore: the proxy would get what gives access, without encryption."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    with serving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        write(server, size)
        assert not proxy.requests
    assert len(server.objects["/b/x.ffr"]) > size


def test_a_proxy_that_wants_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with serving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:p%40ss@"))
        sender = Sender()
        assert sender.send("PUT", lambda: "http://store.example/b/k", b"abc").status == 200
        sender.close()
        [request] = proxy.requests
    assert request.path == "http://store.example/b/k"
    assert request.headers["Proxy-Authorization"] == "Basic bWU6cEBzcw=="


def test_a_server_that_repeats_a_signed_address_instead_of_an_answer() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(connection.recv(1 << 16).partition(b"\r\n")[0].partition(b" ")[2] + b"\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/b/k?X-Amz-Signature=5197"
        with pytest.raises(OSError, match=r"/b/k\?…") as raised:
            Sender().send("PUT", lambda: url, deadline=0)
        thread.join()
    assert "5197" not in str(raised.value)


def test_a_connection_that_was_forgotten(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed over it is sent over another one; but not after a strict deadline, when it may do something else."""
    monkeypatch.setattr(sys.modules[Sender.__module__], "_SHORTEST", 0.1)
    sender, put = Sender(), ("PUT", lambda: f"{server.url}/b/k", b"abc")
    assert sender.send(*put).status == 200
    server.writing["put"] = [late(1000)]
    assert sender.send(*put, deadline=0.1).status == 200
    server.writing["put"] = [late(1000)] * 2
    with pytest.raises(OSError, match="timed out"):
        sender.send(*put, deadline=0.1, is_strict=True)
    assert len(server.writing["put"]) == 1
    sender.close()


@pytest.mark.parametrize("kind", ["begin", "part", "complete", "put"])
@pytest.mark.parametrize("code", [403, 400, 404])
def test_what_the_store_refuses_is_an_error_of_one_line(
    server: ObjectServer, state: Path, kind: str, code: int
) -> None:
    server.writing[kind] = [status(code)] * 20
    error = AccessError if code == 403 else WriteError
    with pytest.raises(error) as raised:
        write(server, 100 if kind == "put" else 9 * MIB)
    assert str(raised.value).startswith("s3://b/x.ffr: ")
    assert "\n" not in str(raised.value)
    assert "X-Amz" not in str(raised.value)
    assert server.objects == {}
    assert server.uploads == {}


def test_a_status_of_200_alone_does_not_confirm_an_object(server: ObjectServer, state: Path) -> None:
    def begun(request: Request, answer: Answer) -> None:  # errors of a long request follow it
        answer.status, answer.body = 200, b"  "

    server.writing["complete"] = [begun]
    with pytest.raises(WriteError, match="is not there"):
        write(server, 9 * MIB)
    assert server.objects == {}
    assert server.uploads == {}


def test_a_store_that_does_not_answer_any_more(server: ObjectServer, state: Path) -> None:
    server.writing["part"] = [not_done] * 1000
    server.writing["abort"] = [not_done] * 1000
    with pytest.raises(WriteError, match=r"s3://b/x.ffr"):
        write(server, 9 * MIB)
    assert list(server.uploads) == ["id1"]
    assert len(list(state.glob("*"))) == 1  # for the next writer
    server.writing.clear()
    write(server, 9 * MIB)
    assert server.uploads == {}
    assert list(state.glob("*")) == []


def test_a_second_interrupt_changes_no_other_file(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that nobody waits for any more frees the memory of its part when the descriptor has another file."""
    asked, goes_on = threading.Event(), threading.Event()

    def ask(target: object, action: str, *patience: float, **fields: object) -> object:
        answer = object_client.ask_upload(target, action, *patience, **fields)
        if action == "url":
            asked.set()
            goes_on.wait(20)
        return answer

    monkeypatch.setattr(part_sender, "ask_upload", ask)
    fd = os.memfd_create("part")
    os.ftruncate(fd, 8 * MIB)
    sender = part_sender.PartSender(parse_url("s3://b/x.ffr"), "place", fd)
    sender.put(0, 0, 8 * MIB)
    assert asked.wait(20)
    [thread] = sender._threads
    join = thread.join

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sender.stop()
    (tmp_path / "other").write_bytes(b"x" * 8 * MIB)
    with (tmp_path / "other").open("r+b") as other:
        os.dup2(other.fileno(), fd)
        goes_on.set()
        join(20)
        os.close(fd)
    assert (tmp_path / "other").read_bytes() == b"x" * 8 * MIB
    monkeypatch.undo()
    sender.abort()


@pytest.mark.parametrize("conditions", [False, None])
@pytest.mark.parametrize("size", [1, 9 * MIB])
def test_a_store_without_conditions(server: ObjectServer, size: int, conditions: bool | None) -> None:
    server.conditions = conditions
    write(server, size, keep=True)
    data = server.objects["/b/x.ffr"]
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(server, size, keep=True, byte=b"y")
    assert server.objects["/b/x.ffr"] == data
    assert server.uploads == {}


def test_a_connection_that_is_closed_does_not_end_the_program(server: ObjectServer, tmp_path: Path) -> None:
    """SIGPIPE would end it without a word."""
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "a").write_bytes(bytes(4 * MIB))
    server.closes_early = True
    done = run("pack", tmp_path / "many", "s3://b/x.ffr", FFFS_DEADLINE="1")
    assert done.returncode == WriteError.exit_code, done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("size", [1, 9 * MIB])
def test_a_lost_answer_to_the_last_request_is_not_another_writer(server: ObjectServer, size: int) -> None:
    server.writing["complete"] = server.writing["put"] = [lost]
    write(server, size, keep=True)
    assert len(server.objects["/b/x.ffr"]) > size


def test_a_lost_answer_about_an_encrypted_object_is_not_another_writer(server: ObjectServer) -> None:
    server.encrypted = True
    server.writing["put"] = [lost]
    write(server, 5, keep=True)
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(server, 5, keep=True, byte=b"y")


def test_an_object_that_vanishes_while_it_is_compared(server: ObjectServer) -> None:
    write(server, 5)
    data = server.objects["/b/x.ffr"]

    def vanish(_: Request, answer: Answer) -> None:
        server.objects.clear()
        answer.status, answer.body, answer.headers = 404, b"", {"Content-Length": "0"}

    server.objects["/b/x.ffr"] = data[::-1]
    server.faults = [vanish]
    write(server, 5, keep=True)
    assert server.objects["/b/x.ffr"] == data


def test_an_object_that_changes_while_it_is_compared(server: ObjectServer) -> None:
    write(server, 3 * MIB)
    data = server.objects["/b/x.ffr"]

    def change(_: Request, __: Answer) -> None:
        server.objects["/b/x.ffr"] = b"changed"

    server.objects["/b/x.ffr"] = data[::-1]
    server.faults = [change]
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        write(server, 3 * MIB, keep=True)
    assert server.objects["/b/x.ffr"] == b"changed"


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("size", [1, 9 * MIB])
@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_a_request_that_meets_another_one_is_repeated(server: ObjectServer, code: str, size: int, keep: bool) -> None:
    conflict = refusal(409, code)
    server.writing["complete"] = server.writing["put"] = [conflict, conflict]
    write(server, size, keep=keep)
    assert len(server.objects["/b/x.ffr"]) > size


@pytest.mark.parametrize("size", [1, 9 * MIB])
def test_a_conflict_without_another_object_is_shown_as_it_is(server: ObjectServer, size: int) -> None:
    server.writing["complete"] = server.writing["put"] = [refusal(409, "Strange")]
    with pytest.raises(WriteError, match="409: Strange: Not now"):
        write(server, size, keep=True)
    assert server.uploads == {}


@pytest.mark.parametrize("kinds", [("part",), ("begin",), ("part", "abort")])
def test_an_interrupt_does_not_wait_for_a_store(server: ObjectServer, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        server.writing[kind] = [late(1000)] * 1000
    (tmp_path / "many").mkdir()
    for k in range(30):
        (tmp_path / "many" / f"{k}").write_bytes(bytes(9 * MIB))
    command = [sys.executable, "-m", "fffs", "pack", "-j", "2", str(tmp_path / "many"), "s3://b/x.ffr"]
    process = subprocess.Popen(command, env={**os.environ, "FFFS_DEADLINE": "600"}, stderr=subprocess.DEVNULL)
    while len([request for request in server.requests if request.kind == kinds[0]]) < (4 if kinds[0] == "part" else 1):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert bool(server.uploads) == ("begin" in kinds)  # the next writer aborts it


def test_the_error_of_one_thread_is_reported_and_not_the_end_of_the_others(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.writing["part"] = [late(1000)] * 1000
    (tmp_path / "many").mkdir()
    for k in range(30):
        (tmp_path / "many" / f"{k:02}").write_bytes(bytes(9 * MIB))
    copy = PackFile.copy

    def copy_and_change(self: PackFile, k: int, *where: int) -> None:
        if k == 29:
            raise OSError(errno.ESTALE, "")
        copy(self, k, *where)

    monkeypatch.setattr(PackFile, "copy", copy_and_change)
    with pytest.raises(SourceChangedError, match="many/29: changed"):
        fffs.pack_folder(tmp_path / "many", "s3://b/x.ffr", jobs=30)
    assert server.uploads == {}


KILLED = """if True:
    import os, signal, sys, threading
    import fffs
    from fffs.objects import connection, part_sender
    moment = int(sys.argv[1])
    count, lock = [0], threading.Lock()

    def counted(act):
        def run(*arguments, **named):
            with lock:
                count[0] += 1
                if count[0] == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **named)
        return run

    connection.write_message = counted(connection.write_message)
    connection.read_message = counted(connection.read_message)
    part_sender.PartSender._send = counted(part_sender.PartSender._send)
    with fffs.FileWriter("s3://test/k/killed.ffr", 2) as writer:
        writer.write_one(bytes(30 << 20))
        writer.write_one(b"2")
    """


def test_a_writer_that_is_killed_at_any_request_leaves_nothing(cloud: Weed) -> None:
    moment, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        moment += 1
        code = subprocess.run([sys.executable, "-c", KILLED, str(moment)], check=False).returncode
        wait_until_none(cloud, "k/")
    assert code == 0
    assert moment > 10


def test_a_server_that_dies_is_an_error_and_what_it_has_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    (tmp_path / "weed").mkdir()
    own = Weed(tmp_path / "weed")
    try:
        clear_environment(monkeypatch, tmp_path)
        for name, value in {**own.environment, "FFFS_DEADLINE": "2"}.items():
            monkeypatch.setenv(name, value)
        writer = _half(own, "l/dies.ffr")
        own.process.kill()
        own.process.wait()
        with pytest.raises(WriteError, match=r"s3://test/l/dies.ffr: cannot write .*Connection refused"), writer:
            writer.write_one(bytes(60 * MIB))
        assert len(list(state.glob("*"))) == 1
    finally:
        own.end()


def test_other_stores_get_a_whole_file(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5a2V5a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.url)
    for name in (tmp_path / "x.ffr", "az://box/x.ffr"):
        with fffs.FileWriter(name, 1) as writer:
            writer.write_one(b"record")
    assert server.objects["/box/x.ffr"] == (tmp_path / "x.ffr").read_bytes()
    with pytest.raises(UsageError, match="already exists; --force replaces it"):
        fffs.convert(tmp_path / "x.ffr", "az://box/x.ffr")


def test_stores_are_used_where_python_has_no_memfd_create(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pythons that are built for an old C library lack it, such as those of conda and uv."""
    object_client._owner.end()
    monkeypatch.delattr(os, "memfd_create")
    write(server, 9 * MIB)
    with fffs.FileReader("s3://b/x.ffr") as reader:
        assert bytes(reader.read_one(1)) == b"2"
    with TFRecordWriter("s3://b/x.tfrecord") as writer:
        writer.write_one(b"record")
    with fffs.FileReader("s3://b/x.tfrecord") as reader:
        assert bytes(reader.read_one(0)) == b"record"


@pytest.mark.parametrize("kind", ["look", "put", "begin", "part", "complete"])
def test_credentials_that_ended(server: ObjectServer, kind: str) -> None:
    server.writing[kind] = [refusal(400, "ExpiredToken")] * 2
    with pytest.raises(AccessError, match="HTTP status 400"):
        write(server, 5 if kind in ("look", "put") else 9 * MIB)
    assert server.objects == {}


@pytest.mark.parametrize("fault", [status(503), lost], ids=["busy", "lost"])
def test_the_first_request_of_a_write_is_repeated(
    server: ObjectServer, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "60")
    server.writing["look"] = [fault] * 7
    write(server, 5)
    assert "/b/x.ffr" in server.objects


def test_a_busy_store_deletes_later(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "60")
    server.objects = {"/b/d/1": b"", "/b/d/2": b"", "/b/e": b""}
    server.writing["delete"] = [status(503)] * 7
    delete_objects("s3://b/", ["d/1"])
    server.writing["delete all"] = [status(503), reset_after(5)]
    delete_objects("s3://b/d/", ["d/1", "d/2", "d/missing"])
    assert server.objects == {"/b/e": b""}
