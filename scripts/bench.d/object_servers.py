"""Servers for ``objects``, on the loopback address: nginx over HTTPS, and a proxy that delays answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent

_CONFIGURATION = """
{user}
worker_processes 1;
daemon off;
error_log {folder}/errors;
pid {folder}/pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    sendfile on; tcp_nodelay on; keepalive_requests 100000000;
    server {{
        listen 127.0.0.1:{port} ssl backlog=1024;
        ssl_certificate {folder}/certificate; ssl_certificate_key {folder}/key;
        root {root};
    }}
}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def compiled(name: str, scratch: Path, *libraries: str) -> Path:
    """Compile NAME.c of this folder, and return the program."""
    program = scratch / name
    command = [os.environ.get("CC", "cc"), "-O2", HERE / f"{name}.c", "-o", program, *libraries]
    subprocess.run(command, check=True)
    return program


@contextlib.contextmanager
def nginx(root: Path, folder: Path) -> Iterator[tuple[int, Path]]:
    """Serve a folder over HTTPS for the block. folder: for its files. Yields the port, and its certificate."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    key, certificate, port = folder / "key", folder / "certificate", free_port()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL)
    user = "user root;" if os.getuid() == 0 else ""  # the folder may be for its owner only
    (folder / "configuration").write_text(_CONFIGURATION.format(user=user, folder=folder, root=root, port=port))
    server = subprocess.Popen(["nginx", "-c", folder / "configuration", "-e", folder / "errors"])
    try:
        _wait_for(port)
        yield port, certificate
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def delayed(port: int, milliseconds: int, scratch: Path, rate: int = 0) -> Iterator[int]:
    """Run a proxy before a server for the block; what the server sends comes late. Yields the proxy's port.

    rate: bytes a second for all connections together; 0: no limit
    """
    command = [compiled("delay", scratch), str(port), str(milliseconds), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        try:
            yield int(proxy.stdout.readline())
        finally:
            proxy.kill()


def _wait_for(port: int) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
