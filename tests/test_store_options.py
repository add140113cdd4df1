"""Options about stores and their cache: what wins, where they are accepted, and what they refuse."""

from __future__ import annotations

import os
import pickle
import subprocess
import threading
from pathlib import Path

import pytest
from inside import Budget, cache_settings, caching, parse_budget, parse_options, parse_size, with_absolute_paths
from mounting import Mounts, run_fffs
from object_server import ObjectServer
from weed import Weed, cloud, weed  # noqa: F401

import fffs
from fffs.errors import UsageError
from fffs.mount import MountOptions, mounted

COUNT = 40


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    for k in range(COUNT):
        path = tmp_path / "src" / f"d{k % 3}" / f"f{k}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k]) * (k * 511))
    fffs.pack_folder(tmp_path / "src", tmp_path / "p.ffr")
    return (tmp_path / "p.ffr").read_bytes()


@pytest.fixture
def url(server: ObjectServer, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An object, and no setting about caches but an empty cache folder of this user."""
    monkeypatch.delenv("FFFS_CACHE", raising=False)
    monkeypatch.delenv("FFFS_CACHE_SIZE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return server.put("p.ffr", content)


def filled(folder: Path) -> bool:
    """Whether a folder has an object of a cache."""
    return any(folder.glob("*.data"))


def default(tmp_path: Path) -> Path:
    return tmp_path / "home/fffs/objects"


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("7", 7), ("20G", 20 << 30), ("20GiB", 20 << 30), ("20GB", 20 * 10**9), ("3 kB", 3000), ("1M", 1 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_budget(text) == Budget(size)


def test_a_share_is_one_of_the_space() -> None:
    assert parse_budget("30%").of(1000) == 300
    assert parse_budget(10**12).of(1000) == 10**12


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "20X", "%", "101%", "-3%", "1e9", "²"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_budget(text)


# ---------------------------------------------------------------- the command line


def test_no_command_but_mount_keeps_anything_unless_told(url: str, tmp_path: Path) -> None:
    run_fffs("unpack", url, tmp_path / "out")
    assert not (tmp_path / "home").exists() or not filled(default(tmp_path))


def test_an_option_wins_over_the_environment(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "environment"))
    run_fffs("unpack", url, tmp_path / "out0", "--cache", tmp_path / "option")
    assert filled(tmp_path / "option")
    assert not (tmp_path / "environment").exists()
    run_fffs("unpack", url, tmp_path / "out1", "--cache", "off")
    assert not (tmp_path / "environment").exists()
    run_fffs("unpack", url, tmp_path / "out2")
    assert filled(tmp_path / "environment")


def test_a_cache_is_not_larger_than_the_option_says(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE_SIZE", "1G")
    run_fffs("unpack", url, tmp_path / "out", "--cache", tmp_path / "c", "--cache-size", "8192")
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "c").glob("*.data")) <= 16384


@pytest.mark.parametrize("command", ["ls", "info", "verify", "cat", "unpack", "convert", "mount"])
def test_wrong_options_are_usage_errors(command: str, tmp_path: Path) -> None:
    arguments = ["http://127.0.0.1:9/x", *([] if command in ("ls", "info", "verify") else [str(tmp_path / "x")])]
    assert "size such as" in run_fffs(command, *arguments, "--cache-size", "much", code=2)
    said = run_fffs(command, *arguments, "--endpoint-url", "https://user:secret@host", code=2)
    assert "secret" not in said
    assert said.count("\n") == 1


def test_commands_without_sources_have_no_such_options() -> None:
    assert "unrecognized" in run_fffs("pack", "x", "--cache", "y", code=2)


# ---------------------------------------------------------------- endpoints


@pytest.mark.parametrize(
    "endpoint",
    [
        *("https://user@host", "https://user:secret@host", "https://host?key=secret", "https://host/#x", "host:80"),
        *("ftp://host", "https://", "https:///x", "https://host name", "http://192.0.2.1", "https://host\n"),
    ],
)
def test_an_endpoint_with_a_secret_or_without_encryption_is_refused(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(UsageError, match="the endpoint") as caught:
        MountOptions(endpoint_url=endpoint)
    assert "secret" not in str(caught.value)


def test_an_endpoint_wins_over_the_environment(
    cloud: Weed,  # noqa: F811
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud.put(cloud.bucket, "option.ffr", content)
    name = f"s3://{cloud.bucket}/option.ffr"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    run_fffs("verify", name, "--endpoint-url", cloud.endpoint)
    with mounted(name, endpoint_url=cloud.endpoint) as point:
        assert (Path(point) / "d1/f1").read_bytes() == b"\1" * 511


# ---------------------------------------------------------------- Python


def test_arguments_win_over_the_environment(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "environment"))
    with fffs.FileReader(url, cache=tmp_path / "argument") as reader:
        reader.read([1])
    with fffs.open(url, cache="off") as reader:
        reader.read([1])
    assert filled(tmp_path / "argument")
    assert not (tmp_path / "environment").exists()
    with fffs.FileReader(url) as reader:
        reader.read([1])
    assert filled(tmp_path / "environment")


def test_a_wrong_size_is_a_usage_error(url: str, tmp_path: Path) -> None:
    for opener in (fffs.FileReader, fffs.open, fffs.PackedFolder):
        with pytest.raises(UsageError, match="cache_size: 'much' is not a size"):
            opener(url, cache_size="much")
    with pytest.raises(UsageError, match="the size of the cache"):
        MountOptions(cache_size="much")
    with pytest.raises(UsageError, match="empty"):
        fffs.FileReader(url, cache="")


def test_a_copy_of_a_reader_has_its_cache(
    server: ObjectServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fffs.FileReader(url, cache="relative", cache_size="1G") as reader, fffs.PackedFolder(url, cache="r") as pack:
        reader.read(range(COUNT))
        data = pickle.dumps((reader, pack))
        monkeypatch.chdir("/")
        copy, pack_copy = pickle.loads(data)
    with copy, pack_copy:
        requests = len(server.requests)
        copy.read(range(COUNT))
        assert len(server.requests) == requests
    assert filled(tmp_path / "relative")
    assert filled(tmp_path / "r")


def test_files_that_are_opened_together_have_the_cache(server: ObjectServer, url: str, tmp_path: Path) -> None:
    others = [server.put(f"{k}.ffr", server.objects["/p.ffr"]) for k in range(5)]
    with fffs.FileReader(others, cache=tmp_path / "c") as reader:
        reader.read(range(reader.n))
    assert len(list((tmp_path / "c").glob("*.data"))) == 5


def test_settings_are_those_of_a_thread_alone(tmp_path: Path) -> None:
    found = []
    with caching(tmp_path, "1G"):
        with caching(None, "2G"):
            assert (cache_settings().folder, cache_settings().budget) == (str(tmp_path), Budget(2 << 30))
        thread = threading.Thread(target=lambda: found.append(cache_settings().folder))
        thread.start()
        thread.join()
    assert found == [cache_settings().folder]
    assert found[0] != str(tmp_path)


def test_training(server: ObjectServer, url: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import fffs.torch

    data = fffs.torch.PackedFolder(url, cache=tmp_path / "c")
    loader = fffs.torch.DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="spawn", collate_fn=list)
    assert sum(len(batch) for batch in loader) == COUNT
    assert filled(tmp_path / "c")
    assert not filled(default(tmp_path))
    assert fffs.torch.Dataset(url, cache="off", cache_size="1G")[1] is not None
    assert not filled(default(tmp_path))
    assert fffs.torch.Dataset(url)[1] is not None
    assert filled(default(tmp_path))


# ---------------------------------------------------------------- mounts


def test_options_may_have_commas_in_quotes() -> None:
    options = parse_options(['cache="/a,b",cache_size=20G', "ro,suffix=.jpg"])
    assert (options.cache, options.cache_size, options.suffix) == ("/a,b", "20G", ".jpg")
    with pytest.raises(UsageError, match="double quote") as caught:
        parse_options(['endpoint_url="https://secret'])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("option", ["cache=", "cache", "cache_size=", "cache_size=much", "endpoint_url="])
def test_options_without_a_right_value(option: str) -> None:
    with pytest.raises(UsageError):
        parse_options([option])


@pytest.mark.fuse
def test_a_mount_uses_the_cache_of_its_options(
    url: str, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "environment"))
    subprocess.run(["diff", "-r", tmp_path / "src", mounts(url, cache=str(tmp_path / "a,b"))], check=True)  # type: ignore[arg-type]
    assert filled(tmp_path / "a,b")
    mounts(url, cache="off")  # type: ignore[arg-type]
    assert not (tmp_path / "environment").exists()


@pytest.mark.fuse
def test_a_relative_folder_in_the_environment_is_one_of_who_mounts(
    url: str, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FFFS_CACHE", "relative")
    (mounts(url) / "d1/f1").read_bytes()  # type: ignore[arg-type]
    assert filled(tmp_path / "relative")


def test_paths_in_the_environment_of_a_daemon_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "AWS_CA_BUNDLE": "ca.crt",
        "AWS_CONFIG_FILE": "~/config",
        "AWS_SHARED_CREDENTIALS_FILE": "./sub/../cred",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/g.json",
        "SSL_CERT_DIR": "a:/b",
        "SSL_CERT_FILE": "",
        "AWS_PROFILE": "some/name",
    }
    assert with_absolute_paths(given) == {
        **given,
        "AWS_CA_BUNDLE": f"{tmp_path}/ca.crt",
        "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/sub/../cred",
        "SSL_CERT_DIR": f"{tmp_path}/a:/b",
    }
    (tmp_path / "lost").mkdir()
    monkeypatch.chdir(tmp_path / "lost")
    (tmp_path / "lost").rmdir()
    assert with_absolute_paths(given) == given


@pytest.mark.fuse
def test_a_mount_of_mount_8_uses_the_cache_of_its_options(url: str, tmp_path: Path) -> None:
    point = tmp_path / "mnt"
    fffs.mount.helper([url, str(point), "-o", f'rw,cache="{tmp_path}/a,b",cache_size=1G,nofail'])
    try:
        assert (point / "d1/f1").read_bytes() == b"\1" * 511
        assert filled(tmp_path / "a,b")
    finally:
        fffs.mount.umount(point)


@pytest.mark.fuse
def test_a_mount_without_a_place_for_a_cache_says_so_in_one_line(
    url: str, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "fffs-test", str(disk)], check=True)
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        point = mounts(url)  # type: ignore[arg-type]
        mounts.daemon.expect("kept on this disk only while this process runs: .*disk/fffs/objects: .*Read-only file")
        subprocess.run(["diff", "-r", tmp_path / "src", point], check=True)
        assert mounts.daemon.log().count("kept on this disk") == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.fuse
def test_a_mount_whose_cache_others_may_write_to_says_so(url: str, mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    point = mounts(url, cache=str(tmp_path / "open"))  # type: ignore[arg-type]
    mounts.daemon.expect("other users may write to it, or own it")
    subprocess.run(["diff", "-r", tmp_path / "src", point], check=True)
    assert not list((tmp_path / "open").iterdir())


@pytest.mark.fuse
def test_nothing_of_the_options_is_in_the_table_of_mounts_or_processes(
    cloud: Weed,  # noqa: F811
    content: bytes,
    mounts: Mounts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    cloud.put(cloud.bucket, "shown.ffr", content)
    mounts(f"s3://{cloud.bucket}/shown.ffr", endpoint_url=cloud.endpoint, cache=str(tmp_path / "hidden"))  # type: ignore[arg-type]
    (line,) = (line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line)
    shown = line + Path(f"/proc/{mounts.daemon.pid}/cmdline").read_text()
    assert f"s3://{cloud.bucket}/shown.ffr" in shown
    for text in (cloud.address, "hidden", cloud.secret, os.environ["AWS_SECRET_ACCESS_KEY"]):
        assert text not in shown


def test_the_kernel_alone_cannot_serve_objects(url: str, tmp_path: Path) -> None:
    said = run_fffs("mount", "-o", "kernel", url, tmp_path / "mnt", code=10)
    assert "cannot read objects in stores" in said
