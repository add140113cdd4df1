"""A real S3 server for tests: SeaweedFS, started once per run, with signed requests that fffs has no part in."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import http.client
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REGION = "us-east-1"
PORTS = (
    "master.port",
    "master.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.iceberg",
    "s3.port.lance",
    "admin.port",
    "admin.port.grpc",
)


class Weed:
    """A running server. ``endpoint`` is its URL, ``bucket`` a bucket that exists; requests are signed with its keys."""

    key_id = "weedkey"
    secret = "weed/secret+0123456789abcdefghijklmnopqr"
    bucket = "test"

    def __init__(self, folder: Path) -> None:
        ports = free_ports(len(PORTS))
        self.address = f"127.0.0.1:{ports[PORTS.index('s3.port')]}"
        self.endpoint = f"http://{self.address}"
        self._folder, self._log = folder, (folder / "log").open("wb")
        options = [f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)]
        options += [f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false"]
        options += [
            "-master.telemetry=false",
            f"-filer.localSocket={folder}/filer.sock",
            f"-s3.localSocket={folder}/s3.sock",
        ]
        # The server ends with the tests, even if these are killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self._command = [*guard, str(Path(sys.executable).parent / "weed"), "mini", *options]
        self.start()

    def start(self, wait: bool = True) -> None:
        """Start the server again, after ``kill``, with what it stored. The kernel kills it when this thread ends.

        wait: until it works, which takes about a second.
        """
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self._folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._folder),
                "AWS_ACCESS_KEY_ID": self.key_id,
                "AWS_SECRET_ACCESS_KEY": self.secret,
                "S3_BUCKET": self.bucket,
            },
        )
        if wait:
            self._wait_until_it_works()

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        self.process.kill()
        self.process.wait()

    def _wait_until_it_works(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.request("PUT", self.bucket, "ready", b"")[0] == 200:
                    return
            time.sleep(0.1)
        self.end()
        raise RuntimeError(f"weed does not start:\n{(self._folder / 'log').read_text(errors='replace')[-2000:]}")

    def end(self) -> None:
        """Stop the server."""
        self.kill()  # what it stored is not needed any more
        self._log.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead fffs to this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
        }

    def store(self) -> Any:
        """Return the bucket for obstore, which stores many objects faster than ``put``."""
        from obstore.store import S3Store

        return S3Store(
            self.bucket,
            endpoint=self.endpoint,
            access_key_id=self.key_id,
            secret_access_key=self.secret,
            region=REGION,
            client_options={"allow_http": True},
        )

    # ------------------------------------------------------------ requests

    def put(self, bucket: str, key: str, data: bytes) -> str:
        """Store an object and return its ETag."""
        status, headers, body = self.request("PUT", bucket, key, data)
        assert status == 200, body
        return headers["ETag"]

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object."""
        assert self.request("DELETE", bucket, key)[0] == 204

    def make_bucket(self, bucket: str) -> None:
        """Create a bucket."""
        assert self.request("PUT", bucket, "")[0] == 200

    def request(
        self, method: str, bucket: str, key: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, bytes]:
        """Send a signed request; return the status, the headers and the body."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, self.sign(method, bucket, key), data, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def uploads(self, prefix: str = "") -> list[str]:
        """Return the keys of uploads that are neither complete nor aborted."""
        path = self.sign("GET", self.bucket, "", {"uploads": "", "prefix": prefix})
        with contextlib.closing(http.client.HTTPConnection(self.address, timeout=30)) as connection:
            connection.request("GET", path)
            return re.findall(r"<Upload>.*?<Key>([^<]*)</Key>", connection.getresponse().read().decode())

    def sign(self, method: str, bucket: str, key: str, more: dict[str, str] | None = None) -> str:
        """Return the path and query of a request that is valid for ten minutes."""
        now = datetime.datetime.now(datetime.timezone.utc)
        scope = f"{now:%Y%m%d}/{REGION}/s3/aws4_request"
        path = "/" + urllib.parse.quote(f"{bucket}/{key}" if key else bucket, safe="/~")
        query = urllib.parse.urlencode(
            sorted(
                {
                    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
                    "X-Amz-Credential": f"{self.key_id}/{scope}",
                    "X-Amz-Date": f"{now:%Y%m%dT%H%M%SZ}",
                    "X-Amz-Expires": "600",
                    "X-Amz-SignedHeaders": "host",
                    **(more or {}),
                }.items()
            )
        )
        canonical = f"{method}\n{path}\n{query}\nhost:{self.address}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{now:%Y%m%dT%H%M%SZ}\n{scope}\n{digest}"
        key_bytes = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            key_bytes = hmac.digest(key_bytes, part.encode(), "sha256")
        return f"{path}?{query}&X-Amz-Signature={hmac.digest(key_bytes, text.encode(), 'sha256').hex()}"


# The kernel gives the ports from 32768 on to any connection, also between the look at them and the start of a server.
# Ray's workers take those below 20000. Each process of a parallel run has a part of its own of what is left, and
# begins somewhere in it: another run at the same time has the same parts.
_PORTS_A_WORKER = 750
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 16
_BEGIN = os.getpid() % _PORTS_A_WORKER
_ports = (20_000 + _WORKER * _PORTS_A_WORKER + number % _PORTS_A_WORKER for number in itertools.count(_BEGIN))


def free_ports(count: int) -> list[int]:
    """Return numbers of ports that nothing uses now, and that nothing takes unless it asks for just these."""
    return list(itertools.islice(filter(_is_free, itertools.islice(_ports, _PORTS_A_WORKER)), count))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """The server. Import this fixture into a module of tests to use it."""
    server = Weed(tmp_path_factory.mktemp("weed"))
    yield server
    server.end()


@pytest.fixture
def cloud(weed: Weed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Weed:
    """The server, with an environment that leads to it and to nothing else."""
    clear_environment(monkeypatch, tmp_path)
    for name, value in weed.environment.items():
        monkeypatch.setenv(name, value)
    return weed


def clear_environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Remove all settings of clouds, and make an empty folder the home."""
    for name in list(os.environ):
        if name.upper().startswith(("AWS_", "GOOGLE_", "AZURE_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
