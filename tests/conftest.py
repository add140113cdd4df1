"""Shared by all tests: the golden files, the rules for tests that mount, and reproducible runs."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import mounting
import pytest
from golden_files import GOLDEN, Golden
from mounting import Mounts
from object_server import ObjectServer, serving

FUSE_DEVICE = Path("/dev/fuse")
NO_FUSE = f"there is no {FUSE_DEVICE}"
NO_BROWSER = "there is no Chromium: apt-get install chromium-headless-shell"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
NOT_TESTED = {NO_FUSE: "the mount", NO_BROWSER: "the pages of the site in a browser"}

# All runs use the same examples, so that failures are reproducible. No deadline, because times are not.
hypothesis.settings.register_profile("fffs", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fffs"))


def receive_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP take effect, here and in programs that tests start,
    which inherit what is ignored.

    Shells start background jobs with SIGINT ignored, nohup starts programs with SIGHUP ignored, and libraries that
    tests use change the handling of signals.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


receive_interrupts()

os.environ["RAY_ADDRESS"] = "local"  # not a cluster that runs on this machine, or has left its address there


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Exempt what is there before the first test from garbage collection.

    These are half a million objects, among them thousands of tests. Without this, each of the many gc.collect() of
    tests looks at them all, and so do forked children, which copies them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# ---------------------------------------------------------------- tests that mount, or look at pages


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose marker says that they need what this machine lacks; in continuous integration, fail them."""
    receive_interrupts()
    refuse = pytest.fail if os.environ.get("CI") else pytest.skip
    if item.get_closest_marker("fuse") and not FUSE_DEVICE.exists():
        refuse(NO_FUSE)
    if item.get_closest_marker("browser") and not any(map(shutil.which, BROWSERS)):
        refuse(NO_BROWSER)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Report, after the list of skipped tests, what was not tested."""
    result = yield
    # Count reports instead of collected tests: other processes may have collected them.
    for reason, subject in NOT_TESTED.items():
        skipped = sum(reason in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
        if skipped:
            text = f"NOT TESTED: {subject}. {skipped} tests were skipped because {reason}."
            terminalreporter.write_line(text, red=True, bold=True)
    return result


@pytest.fixture(params=[False, True], ids=["pyfuse3", "fastpath"])
def mounts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounts]:
    """Mounts without and with the fast path. After the test they are unmounted, and nothing may be left."""
    mounts = Mounts(tmp_path, fastpath=request.param)
    yield mounts
    mounts.end()
    assert not mounting.mounts_below(tmp_path)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """An HTTP server of objects that can misbehave."""
    with serving() as found:
        yield found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache of objects, which does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FFFS_CACHE", str(folder))
    monkeypatch.delenv("FFFS_CACHE_SIZE", raising=False)
    return folder


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can access, unlike those of pytest, on a disk that allows set-user-ID programs."""
    with tempfile.TemporaryDirectory(prefix="fffs-test-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o777)
        yield Path(name)
        mounting.detach_all(Path(name))


@pytest.fixture(autouse=True)
def _log_police() -> Iterator[None]:
    """If the daemon of a mount for many tests logs a problem, fail the test that caused it."""
    yield
    for mounts in mounting.LIVE:
        mounts.police()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """In tests of the mount, start daemons and commands with warnings about unclosed and unawaited objects."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("fuse"):
            patch.setenv("PYTHONDEVMODE", "1")
            patch.setenv("PYTHONWARNINGS", "default")
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """Fail tests in which a daemon or another process wrote an unhandled exception to stderr."""
    report: pytest.TestReport = yield
    # Names in logs may not be UTF-8, which pytest-xdist cannot send.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    for name, text in report.sections if item.get_closest_marker("fuse") else ():
        if report.passed and "stderr" in name and mounting.FORBIDDEN.search(text):
            report.outcome = "failed"
            report.longrepr = f"{name}: a process complained:\n{text}"
    return report


# ---------------------------------------------------------------- every test


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a cache folder for tests instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def in_public() -> Iterator[Path]:
    """A folder that every user can access."""
    with tempfile.TemporaryDirectory(prefix="fffs-test-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield Path(name)


# ---------------------------------------------------------------- golden files


@pytest.fixture(scope="session")
def golden() -> Golden:
    """The files that ffrecord wrote, with their manifest. Tests must not change them."""
    return GOLDEN


@pytest.fixture
def corrupted(tmp_path: Path) -> Callable[[str], Path]:
    """``corrupted(id)`` writes a damaged variant of the manifest to a file of its own."""

    def write(identity: str) -> Path:
        path = tmp_path / f"{identity}.ffr"
        path.write_bytes(GOLDEN.corrupt(identity))
        return path

    return write
