"""Engines: executors by name. Ray, Dask and MPI are imported only when they are named."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

from fffs.base.modules import SAFE, are_workers_protected
from fffs.cluster.executors import ExecutorLike, Submits
from fffs.cluster.processes import Processes
from fffs.errors import FffsError, UsageError

NAMES: Final = "processes:N, dask:ADDRESS, ray, ray:ADDRESS or mpi"

_T = TypeVar("_T")


@contextlib.contextmanager
def executing(executor: ExecutorLike) -> Iterator[Submits | None]:
    """Yield an executor, or None for None. One that was given by its name ends with the block. That of a client of Dask
    stands for it.

    Raises:
        UsageError: there is no executor of that name, or its package is not installed.

    """
    if isinstance(executor, str):
        kind, _, rest = executor.partition(":")
        if kind not in _ENGINES:
            raise UsageError(f"{executor!r} is not an executor; write {NAMES}")
        with _ENGINES[kind](rest) as made:
            yield made
        return
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise UsageError(f"an executor needs a method submit, which {type(executor).__name__} does not have")
    of_client = getattr(executor, "get_executor", None)
    yield of_client() if of_client else executor


def _processes(number: str) -> Processes:
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself looks
        raise UsageError(
            f"processes:{number}: each new process runs this module first, which must not start processes then: put "
            "the call below if __name__ == '__main__':"
        )
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"'processes:{number}' is not an executor; write processes:N with a number of at least 1")
    return Processes(int(number))


def _imported(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # mpi4py raises the latter if there is no library of MPI
        raise UsageError(f"the executor needs the package {package}, which cannot be imported: {error}") from error


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Submits]:
    distributed = _imported("distributed", "distributed")
    if not address:
        raise UsageError("name the scheduler of Dask, as in dask:tcp://HOST:8786")
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as error:
        raise UsageError(f"dask:{address}: the scheduler cannot be reached: {error}") from error
    # Its executor is not shut down, which waits for ever if the scheduler is gone. Nothing runs after a job.
    try:
        yield client.get_executor()
    except BaseException:
        with contextlib.suppress(Exception):  # of a client without its scheduler; why the job ended says more
            client.close()
        raise
    client.close()


@contextlib.contextmanager
def _mpi(_: str) -> Iterator[Submits]:
    options = [*SAFE] if _is_kept_out() else []  # for workers that it starts itself
    with _imported("mpi4py.futures", "mpi4py").MPIPoolExecutor(python_args=options) as executor:
        yield executor


_ENGINES: Final[dict[str, Callable[[str], contextlib.AbstractContextManager[Submits]]]] = {
    "processes": _processes,
    "dask": _dask,
    "ray": lambda address: RayExecutor(address or None),
    "mpi": _mpi,
}


def _is_kept_out() -> bool:
    """Return whether workers must not import from the current folder. Under ``python -m``, this process does, too."""
    return are_workers_protected() and os.path.abspath("") not in sys.path


# ---------------------------------------------------------------- Ray


class RayExecutor(Executor):
    """Submits functions to Ray, which has no executor of its own. ``shutdown`` leaves Ray as it is."""

    def __init__(self, address: str | None = None) -> None:
        """address: of the cluster, if this process is not connected to one yet. None: ``ray.init`` decides.

        Raises:
            UsageError: Ray is not installed, or there is no cluster at the address.

        """
        self._ray = _imported("ray", "ray")
        if not self._ray.is_initialized():
            try:
                self._ray.init(address, **_ray_options(address))
            except (ConnectionError, ValueError) as error:
                raise UsageError(f"ray:{address or ''}: the cluster cannot be reached: {error}") from error

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """As in the base class. Ray itself runs nothing again: it would do that without a word to the caller."""
        reference = self._ray.remote(max_retries=0)(fn).remote(*args, **kwargs)
        future = _RayFuture(self._ray, reference)
        reference.future().add_done_callback(future.take)
        return future


def _ray_options(address: str | None) -> dict[str, Any]:
    """Return options with which the workers of programs import nothing from the current folder of this process.

    Ray adds it to a list of paths, which come first for its workers. Its clients, for addresses with a scheme, do not,
    and know no such option.
    """
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS")
    if not _is_kept_out() or "://" in (address or ""):
        return {}
    config = importlib.import_module("ray.job_config").JobConfig
    paths = property(lambda config: [], lambda config, value: None)  # to which nothing is added
    return {"job_config": type(config.__name__, (config,), {"_py_driver_sys_path": paths})()}


class _RayFuture(Future[Any]):
    """The result of a function in Ray."""

    def __init__(self, ray: Any, reference: Any) -> None:
        super().__init__()
        self._ray, self._reference = ray, reference

    def cancel(self) -> bool:
        """As in the base class, but also for a function that runs: Ray interrupts it."""
        if not self.done():
            with contextlib.suppress(Exception):
                self._ray.cancel(self._reference)
        return super().cancel()

    def take(self, inner: Future[Any]) -> None:
        """Take the result of Ray's own future."""
        if not self.set_running_or_notify_cancel():
            return
        error = inner.exception()
        if error is None:
            self.set_result(inner.result())
            return
        cause = getattr(error, "cause", None)  # the text of Ray's exception is a traceback
        self.set_exception(cause if isinstance(cause, FffsError) else error)
