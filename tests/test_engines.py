"""Executors by name, with stand-ins for the packages of other engines. ``scripts/cluster`` tries the real ones."""

from __future__ import annotations

import errno
import os
import pickle
import sys
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from inside import engines, executors, modules
from set_sources import assert_same

import fffs
from fffs.errors import SourceChangedError, SourceNotFoundError, UsageError, WorkerError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of six files."""
    (tmp_path / "photos").mkdir()
    for k in range(6):
        (tmp_path / "photos" / f"{k}.jpg").write_bytes(bytes([k]) * 1000)
    return tmp_path / "photos"


class RayTaskError(Exception):
    """As Ray's: the exception of a task is its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a traceback\nof many lines\n{cause}")
        self.cause = cause


class Reference:
    def __init__(self, future: Future[Any]) -> None:
        self.inner = future

    def future(self) -> Future[Any]:
        return self.inner


class FakeRay(types.ModuleType):
    """Runs functions in threads."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.addresses: list[str | None] = []
        self.cancelled: list[Reference] = []
        self.pool = ThreadPoolExecutor(2)
        self.wrong: dict[int, Exception] = {}

    def is_initialized(self) -> bool:
        return bool(self.addresses)

    def init(self, address: str | None, **options: Any) -> None:
        if address == "nowhere:1":
            raise ConnectionError("no cluster")
        self.addresses.append(address)
        self.options = options

    def remote(self, *, max_retries: int) -> Any:
        assert max_retries == 0  # whoever submits sees each failure
        return self._remote

    def _remote(self, fn: Callable[..., Any]) -> Any:
        def run(task: Any, *args: Any) -> Any:
            if error := self.wrong.pop(task.number, None):
                raise error
            try:
                return fn(task, *args)
            except Exception as error:
                raise RayTaskError(error) from error

        return types.SimpleNamespace(remote=lambda *args: Reference(self.pool.submit(run, *args)))

    def cancel(self, reference: Reference) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """A stand-in for Ray."""
    module = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr(modules, "_protected", [])  # a command may have run in this process
    return module


def test_ray_by_name_and_as_an_object(source: Path, tmp_path: Path, ray: FakeRay) -> None:
    fffs.pack_folder(source, tmp_path / "a", parts=3, executor="ray:10.0.0.1:6379")
    assert ray.addresses == ["10.0.0.1:6379"] and ray.options == {}
    fffs.pack_folder(source, tmp_path / "b", parts=3, executor=fffs.ray.executor())
    assert ray.addresses == ["10.0.0.1:6379"]  # it is connected already
    assert_same(source, tmp_path / "a", tmp_path / "copy")
    assert_same(source, tmp_path / "b", tmp_path / "copy-b")


class JobConfig:
    """As Ray's, which adds the current folder to the paths."""

    def __init__(self) -> None:
        self._py_driver_sys_path = list[str]()

    def paths(self) -> list[str]:
        self._py_driver_sys_path.extend([os.getcwd()])
        return self._py_driver_sys_path


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "", "auto", "ray://10.0.0.1:10001", "beside"])
@pytest.mark.parametrize("variable", ["", "10.0.0.1:6379", "ray://10.0.0.1:10001"])
def test_ray_gets_no_current_folder_from_commands(
    source: Path, tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, address: str, variable: str
) -> None:
    """Unless modules of that folder are ours, too; and clients of Ray have none."""
    monkeypatch.setattr(modules, "_protected", [True])
    monkeypatch.setitem(sys.modules, "ray.job_config", types.SimpleNamespace(JobConfig=JobConfig))
    monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.chdir(source)
    if address == "beside":
        monkeypatch.syspath_prepend(source)
    fffs.pack_folder(source, tmp_path / "a", parts=3, executor=f"ray:{address}")
    if address.startswith("10") or (address in ("", "auto") and "://" not in variable):
        assert ray.options.pop("job_config").paths() == []
    assert ray.options == {}


def test_a_worker_of_ray_that_dies(source: Path, tmp_path: Path, ray: FakeRay) -> None:
    ray.wrong[1] = RuntimeError("the actor died")
    fffs.pack_folder(source, tmp_path / "a", parts=3, executor="ray")
    assert ray.wrong == {} and ray.addresses == [None]


def test_an_error_in_ray_is_that_of_the_task(source: Path, tmp_path: Path, ray: FakeRay) -> None:
    plan = fffs.plan_pack(source, tmp_path / "a", 3)
    (source / "3.jpg").write_bytes(b"changed")
    with pytest.raises(SourceChangedError, match=r"3\.jpg") as caught:
        executors.run_tasks(plan.tasks, fffs.ray.executor())
    assert "\n" not in str(caught.value)


def test_a_cancelled_future_of_ray_ends_what_waits_for_it(ray: FakeRay, source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "a", 3)
    started = [fffs.ray.executor().submit(hold, task, tmp_path / "go") for task in plan.tasks]
    assert all(future.cancel() for future in started)
    assert len(ray.cancelled) == 3
    (tmp_path / "go").touch()
    ray.pool.shutdown()
    assert all(future.cancelled() for future in started)


def hold(_: Any, until: Path) -> None:
    while not until.exists():
        os.sched_yield()


def test_a_cluster_that_is_not_there(source: Path, tmp_path: Path, ray: FakeRay) -> None:
    with pytest.raises(UsageError, match="ray:nowhere:1: the cluster cannot be reached"):
        fffs.pack_folder(source, tmp_path / "a", parts=3, executor="ray:nowhere:1")
    assert os.listdir(tmp_path) == ["photos"]


class NeverShutDown(ThreadPoolExecutor):
    """As the executor of Dask, which waits for ever if its scheduler is gone."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        raise AssertionError


def fake_dask(addresses: list[str]) -> Any:
    class Client:
        def __init__(self, address: str) -> None:
            if "nowhere" in address:
                raise OSError("timed out")
            addresses.append(address)

        def close(self) -> None:
            addresses.append("closed")
            if sys.exc_info()[0]:
                raise RuntimeError("no scheduler")

        def get_executor(self) -> ThreadPoolExecutor:
            return NeverShutDown(2)

    return types.SimpleNamespace(Client=Client)


def test_dask_by_the_address_of_its_scheduler(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    addresses: list[str] = []
    monkeypatch.setitem(sys.modules, "distributed", fake_dask(addresses))
    fffs.pack_folder(source, tmp_path / "a", parts=3, executor="dask:tcp://10.0.0.1:8786")
    assert addresses == ["tcp://10.0.0.1:8786", "closed"]
    with pytest.raises(SourceNotFoundError), engines.executing("dask:tcp://10.0.0.1:8786"):
        raise SourceNotFoundError("the error to show")
    assert addresses[2:] == ["tcp://10.0.0.1:8786", "closed"]
    for name, message in (("dask", "name the scheduler"), ("dask:tcp://nowhere:1", "cannot be reached: timed out")):
        with pytest.raises(UsageError, match=message):
            fffs.pack_folder(source, tmp_path / "b", parts=3, executor=name)
    assert_same(source, tmp_path / "a", tmp_path / "copy")


@pytest.mark.parametrize("protected", [False, True])
def test_mpi_by_name(source: Path, tmp_path: Path, monkeypatch: Any, protected: bool) -> None:
    """In commands, workers that it starts by itself look for no modules in the current folder."""
    given: list[list[str]] = []

    def make(python_args: list[str]) -> ThreadPoolExecutor:
        given.append(python_args)
        return ThreadPoolExecutor(2)

    futures = types.SimpleNamespace(MPIPoolExecutor=make)
    monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(futures=futures))
    monkeypatch.setitem(sys.modules, "mpi4py.futures", futures)
    monkeypatch.setattr(modules, "_protected", [True] * protected)
    monkeypatch.chdir(tmp_path)
    fffs.pack_folder(source, tmp_path / "a", parts=3, executor="mpi")
    assert_same(source, tmp_path / "a", tmp_path / "copy")
    assert given == [["-P"] * (protected and sys.version_info >= (3, 11))]


@pytest.mark.parametrize(
    ("executor", "package"), [("dask:tcp://x:1", "distributed"), ("ray", "ray"), ("mpi", "mpi4py")]
)
def test_a_package_that_is_not_installed_is_named(
    source: Path, tmp_path: Path, executor: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.futures", None)
    with pytest.raises(UsageError, match=f"the executor needs the package {package}"):
        fffs.pack_folder(source, tmp_path / "a", parts=3, executor=executor)
    assert os.listdir(tmp_path) == ["photos"]


def test_a_library_of_mpi_that_is_missing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules/mpi4py").mkdir(parents=True)
    (tmp_path / "modules/mpi4py/__init__.py").write_text("")
    (tmp_path / "modules/mpi4py/futures.py").write_text("raise RuntimeError('cannot load MPI library')")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    for name in ("mpi4py", "mpi4py.futures"):
        monkeypatch.setitem(sys.modules, name, None)  # which is put back at the end
        del sys.modules[name]
    with pytest.raises(UsageError, match="mpi4py, which cannot be imported: cannot load MPI library"):
        fffs.pack_folder(source, tmp_path / "a", parts=3, executor="mpi")


def test_an_executor_that_was_shut_down(source: Path, tmp_path: Path) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(WorkerError, match="the executor failed: RuntimeError"):
        fffs.pack_folder(source, tmp_path / "a", parts=3, executor=pool)


class Forgetful(ThreadPoolExecutor):
    """Its futures stay pending when they are cancelled, as those of some engines."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if args[0].number != 1:
            return Future()
        return super().submit(fn, *args, **kwargs)


def test_an_error_does_not_wait_for_what_never_runs(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "a", 3)
    (source / "3.jpg").write_bytes(b"changed")
    with Forgetful(1) as pool, pytest.raises(SourceChangedError):
        executors.run_tasks(plan.tasks, pool)


class Remembering(ThreadPoolExecutor):
    """Gives the result of an earlier call with the same arguments, as Dask does."""

    def __init__(self) -> None:
        super().__init__(1)
        self.known: dict[bytes, Future[Any]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        key = pickle.dumps((fn, args))
        if key not in self.known:
            self.known[key] = super().submit(fn, *args, **kwargs)
        return self.known[key]


def fails_twice(path: str) -> int:
    with open(path, "a+") as file:
        file.seek(0)
        count = len(file.read())
        file.write("x")
    if count < 2:
        raise OSError(errno.EIO, "not yet")
    return count


def test_an_engine_that_remembers_results_runs_each_attempt(tmp_path: Path) -> None:
    call = executors.Call(fails_twice, (str(tmp_path / "attempts"),), "x")
    with Remembering() as pool:
        assert list(executors.run_calls([call], pool)) == [(0, 2)]
        assert list(executors.run_calls([call], pool)) == [(0, 3)]  # nor that of an earlier job


@pytest.mark.parametrize("status", ["closed", "connecting"])
def test_what_a_lost_scheduler_never_ends_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: str
) -> None:
    """Dask drops without a word what is submitted while its client closes, and then cannot cancel it."""
    monkeypatch.setattr(executors, "LOOK_EVERY", 0.01)
    client = types.SimpleNamespace(status="running", _timeout=0.05)

    def submit(fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        client.status = status
        future: Future[Any] = Future()
        if status == "closed":
            future.add_done_callback(lambda future: 1 / 0)
        return future

    pool: Any = types.SimpleNamespace(submit=submit, _client=client)
    with pytest.raises(WorkerError, match="x: the scheduler of Dask is gone"):
        list(executors.run_calls([executors.Call(len, ("",), "x")], pool))
    assert not caplog.records


def test_a_client_of_dask_stands_for_its_executor() -> None:
    pool = ThreadPoolExecutor(1)
    client: Any = types.SimpleNamespace(submit=pool.submit, get_executor=lambda: pool)
    with engines.executing(client) as found:
        assert found is pool
