"""``fffs doctor`` says what is missing, and what to do about it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import as_nobody, record_file
from inside import doctor_files, doctor_mounting, doctor_packages, doctor_reading, engine, lib, mount_kernel

import fffs
from fffs.errors import Exit, MountError


def doctor(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fffs", "doctor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def by_name(findings: Iterable[Any]) -> dict[str, Any]:
    return {finding.name: finding for finding in findings}


def test_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "a.ffr").write_bytes(record_file([b"a"] * 10))
    done = doctor(tmp_path / "a.ffr")
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "reading:",
        "mounting:",
        "packages:",
        f"{tmp_path / 'a.ffr'}:",
    ]
    states = {line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] != "->"}
    assert states <= {"ok", "hint", "problem"}
    assert any(line.split()[:3] == ["ok", "engine", "reads"] for line in lines if line)


def test_json_has_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.ffr").write_bytes(record_file([b"a"]))
    found = json.loads(doctor("--json", tmp_path / "a.ffr").stdout)
    assert set(found) == {"fffs", "findings"}
    assert {f["subject"] for f in found["findings"]} == {"reading", "mounting", "packages", str(tmp_path / "a.ffr")}
    for finding in found["findings"]:
        assert set(finding) == {"subject", "name", "state", "found", "cure"}
        assert bool(finding["cure"]) == (finding["state"] != "ok")
    names = [f["name"] for f in found["findings"] if f["subject"] == "reading"]
    assert names == ["engine", "io_uring", "Linux AIO", "page cache", "max_map_count", "descriptors", "/dev/shm"]


@pytest.mark.parametrize("name", ["pread", "aio"])
def test_the_engine_is_the_one_that_is_used(name: str) -> None:
    found = json.loads(doctor("--json", env=os.environ | {"FFFS_ENGINE": name}).stdout)["findings"]
    assert found[0]["found"].startswith(f"reads with {name}")
    wrong = doctor(env=os.environ | {"FFFS_ENGINE": "warp"})
    assert (wrong.returncode, wrong.stderr.count("\n")) == (Exit.USAGE, 1)


def test_files_that_cannot_be_looked_at(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none", Exit.NO_SOURCE), (tmp_path, Exit.USAGE), ("/dev/null", Exit.USAGE)):
        done = doctor(path)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1)
        assert str(path) in done.stderr


@pytest.mark.parametrize(
    ("error", "disabled", "cure"),
    [
        (errno.EPERM, "2", "sysctl kernel.io_uring_disabled=0 (it is 2)"),
        (errno.EPERM, "0", "a seccomp filter forbids it"),
        (errno.EPERM, None, "a seccomp filter forbids it"),
        (errno.ENOMEM, "0", "ulimit -l unlimited"),
        (errno.ENOSYS, None, "the kernel was built without it"),
        (errno.EINVAL, "0", "use Linux 5.6 or later"),
    ],
)
def test_why_io_uring_is_refused(monkeypatch: pytest.MonkeyPatch, error: int, disabled: str | None, cure: str) -> None:
    monkeypatch.setattr(doctor_reading, "setting", lambda path: disabled)
    found = doctor_reading._io_uring(error, "aio")
    assert found.state == "hint"
    assert cure in found.cure
    assert os.strerror(error) in found.found
    assert "aio is slower" in found.found


def test_limits_that_are_low(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"max-nr": "65536", "aio-nr": "65000", "max_map_count": "1000"}
    monkeypatch.setattr(
        doctor_reading,
        "setting",
        lambda path: (
            values[path.rsplit("aio-")[-1].rpartition("/")[2]] if not path.endswith("aio-nr") else values["aio-nr"]
        ),
    )
    monkeypatch.setattr(doctor_reading, "are_few", lambda: True)
    status = os.statvfs_result((4096, 4096, 16384, 100, 100, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    chosen = engine.name()
    found = by_name(doctor_reading.check_reading())
    assert engine.name() == chosen
    for name, cure in {
        "Linux AIO": "sysctl fs.aio-max-nr=1048576",
        "max_map_count": "sysctl vm.max_map_count=65530",
        "descriptors": "ulimit -n 4096",
        "/dev/shm": "--shm-size=8g",
    }.items():
        assert found[name].state == "hint", name
        assert cure in found[name].cure


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("user has no write access to mountpoint /opt", "name a folder that you may write to"),
        ("could not determine username", "have root add your user id to /etc/passwd, or read without a mount"),
        ("mount failed: Operation not permitted", "fffs doctor says what is missing"),
        ("failed to open /dev/fuse: Permission denied", "have root allow it (chmod 666 /dev/fuse)"),
        ("fuse device not found, try 'modprobe fuse' first", "try 'modprobe fuse' first"),
    ],
)
def test_a_refused_mount_says_what_to_do(said: str, cure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fusermount3").write_text(f'#!/bin/sh\necho "fusermount3: {said}" >&2\nexit 1\n')
    (tmp_path / "fusermount3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    request = mount_kernel.MountRequest(str(tmp_path), -1, "a.ffr", allow_other=False, noexec=False)
    with pytest.raises(MountError, match=re.escape(cure)) as caught:
        mount_kernel._attach_as_user(request)
    assert str(caught.value).startswith(f"{tmp_path}: cannot mount: fusermount3: {said}")


def test_a_user_without_rights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fuse.conf").write_text("# user_allow_other\n")
    monkeypatch.setattr(doctor_mounting, "CONFIGURATION", str(tmp_path / "fuse.conf"))
    monkeypatch.setattr(doctor_mounting, "DEVICE", str(tmp_path / "fuse"))
    (tmp_path / "fuse").touch(0o600)
    plain = tmp_path / "fusermount3"
    plain.touch(0o755)
    monkeypatch.setattr("shutil.which", lambda name, mode: str(plain))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor_mounting, "_may_mount", lambda: False)
    found = by_name(doctor_mounting.check_mounting())
    assert "chmod u+s" in found["fusermount3"].cure
    assert "user_allow_other" in found["allow_other"].cure
    assert found["mount -o kernel"].found == "for root only"
    (tmp_path / "fuse.conf").write_text("# comment\n user_allow_other # for containers\n")
    plain.chmod(0o4755)
    monkeypatch.setattr("shutil.which", lambda name, mode: None)
    found = by_name(doctor_mounting.check_mounting())
    assert found["allow_other"].state == "ok"
    assert (found["fusermount3"].state, "apt-get install fuse3" in found["fusermount3"].cure) == ("problem", True)


@pytest.mark.parametrize(
    ("values", "mode", "owner", "flags", "found", "cure"),
    [
        ({}, 0o4755, 0, 0, "/bin/fusermount3", ""),
        ({"NoNewPrivs": "1"}, 0o4755, 0, 0, "no_new_privs", "allowPrivilegeEscalation: true"),
        ({"CapBnd": "000001ffffdfffff"}, 0o4755, 0, 0, "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"),
        ({}, 0o4755, 0, os.ST_NOSUID, "nosuid", "mount -o remount,suid"),
        ({"uid_map": "1000 1000 1"}, 0o4755, 65534, 0, "user namespace", "unshare -rm"),
        ({"uid_map": "0 100000 65536"}, 0o4755, 0, 0, "/bin/fusermount3", ""),
        ({}, 0o755, 0, 0, "not setuid root", "chmod u+s"),
        ({}, 0o4755, 1000, 0, "not setuid root", "chmod u+s"),
        ({"capability": ""}, 0o755, 0, 0, "/bin/fusermount3", ""),
        ({"user": "none"}, 0o4755, 0, 0, "users with a name, and 4321 has none", "/etc/passwd"),
        ({}, 0o4750, 0, 0, "may only be run by its owner and its group", "its group"),
    ],
)
def test_why_fusermount_cannot_become_root(
    values: dict[str, str],
    mode: int,
    owner: int,
    flags: int,
    found: str,
    cure: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = {"NoNewPrivs": "0", "CapBnd": "000001ffffffffff", "uid_map": "0 0 4294967295", **values}
    status = "Name:\tpython\n" + "".join(f"{name}:\t{value}\n" for name, value in fields.items())
    answers = {"/proc/self/status": status, "/proc/self/uid_map": fields["uid_map"]}
    monkeypatch.setattr(doctor_mounting, "setting", answers.get)
    monkeypatch.setattr("shutil.which", lambda name, mode: f"/bin/{name}")
    monkeypatch.setattr(os, "access", lambda path, asked: mode & 0o1 == 0o1)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"set" if "capability" in values else b"")
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((mode, 1, 1, 1, owner, 0, 1, 0, 0, 0)))
    if "user" in values:
        monkeypatch.setattr(os, "getuid", lambda: 4321)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 1, 1, 1, 0, 0, 0, flags, 255)))
    monkeypatch.setattr(doctor_mounting, "TABLE", os.devnull)
    finding = doctor_mounting._fusermount(by_root=False)
    assert finding.state == ("problem" if cure else "ok")
    assert found in finding.found and cure in finding.cure
    assert doctor_mounting._fusermount(by_root=True).state == "ok"


@pytest.mark.parametrize(
    ("profile", "state"),
    [
        ("docker-default (enforce)", "problem"),
        ("containers-default-0.44.4 (enforce)", "problem"),
        ("snap.code.code (enforce)", "hint"),
        ("docker-default (complain)", None),
        ("unconfined", None),
        ("system_u:system_r:container_t:s0:c1,c2\0", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("place", ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"])
def test_a_profile_that_forbids_to_mount(
    profile: str | None, state: str | None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_mounting, "setting", lambda path: profile if path == place else None)
    found = list(doctor_mounting._profile())
    assert [finding.state for finding in found] == [state] * (state is not None)
    assert all("--security-opt apparmor=unconfined" in finding.cure for finding in found)


def test_a_system_without_mtab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name, mode: f"/bin/{name}")
    monkeypatch.setattr(doctor_mounting, "_obstacle", lambda path: None)
    monkeypatch.setattr(doctor_mounting, "TABLE", str(tmp_path / "mtab"))
    (tmp_path / "mtab").symlink_to(tmp_path / "none")
    finding = doctor_mounting._fusermount(by_root=False)
    assert (finding.state, finding.cure) == ("hint", f"have root make it: ln -s /proc/self/mounts {tmp_path}/mtab")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
def test_a_process_without_new_privileges_is_told() -> None:
    not_by_root = ["--bounding-set=-sys_admin"] if os.geteuid() == 0 else []
    command = ["setpriv", *not_by_root, "--no-new-privs", sys.executable, "-m", "fffs", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}["fusermount3"]
    assert (done.returncode, found["state"]) == (Exit.MOUNT, "problem")
    assert "no_new_privs" in found["found"] or shutil.which("fusermount3") is None


@pytest.mark.parametrize(
    ("prepare", "cure"),
    [
        (lambda path: None, "modprobe fuse"),
        (lambda path: path.touch(), "modprobe fuse"),
        (lambda path: path.symlink_to("/dev/null"), "modprobe fuse"),
        (lambda path: path.mkdir(), "modprobe fuse"),
    ],
    ids=["missing", "file", "other device", "folder"],
)
def test_a_device_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prepare: Callable[[Path], None], cure: str
) -> None:
    monkeypatch.setattr(doctor_mounting, "DEVICE", str(tmp_path / "fuse"))
    prepare(tmp_path / "fuse")
    found = by_name(doctor_mounting.check_mounting())[str(tmp_path / "fuse")]
    assert found.state == "problem"
    assert cure in found.cure


@pytest.mark.parametrize(
    ("release", "known", "loops", "found", "state"),
    [
        ("6.12.0-1-amd64", "nodev\ttmpfs\n\terofs", True, "EROFS from files", "ok"),
        ("6.1.0-18-amd64", "\terofs\n\text4", True, "EROFS from loop devices", "ok"),
        ("6.1.0-18-amd64", "\terofs", False, "needs loop devices", "hint"),
        ("6.12.0", "nodev\terofsx", True, "the kernel has no EROFS", "hint"),
    ],
)
def test_kernel_mounts(
    monkeypatch: pytest.MonkeyPatch, release: str, known: str, loops: bool, found: str, state: str
) -> None:
    monkeypatch.setattr("platform.release", lambda: release)
    monkeypatch.setattr(doctor_mounting, "setting", lambda path: known if path == "/proc/filesystems" else None)
    monkeypatch.setattr(os.path, "exists", lambda path: loops)
    finding = doctor_mounting._kernel(by_root=True)
    assert (found in finding.found, finding.state) == (True, state)


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        if name in ("numpy", "cffi"):
            return "1"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor_packages, "version", missing)
    monkeypatch.setattr(doctor_packages, "distributions", lambda name: [])
    monkeypatch.setattr(doctor_mounting, "version", missing)
    found = by_name(doctor_packages.check_packages())
    assert found["torch"].cure == "pip install 'fffs[torch]'"
    assert found["torch"].found == "not installed; fffs.torch needs it"
    assert found["obstore"].found == "not installed; s3://, gs:// and az:// need it"
    mounting = by_name(doctor_mounting.check_mounting())
    assert (mounting["pyfuse3"].state, mounting["trio"].state) == ("problem", "problem")
    assert "python3-pyfuse3" in mounting["pyfuse3"].cure and "fffs[mount]" in mounting["pyfuse3"].cure


def test_a_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyarrow": "15.0.2", "obstore": "0.11.0a1", "ray": None}  # None: the remains of an interrupted removal
    monkeypatch.setattr(doctor_packages, "distributions", lambda name: [SimpleNamespace(version=versions[name])])
    extras = {"pyarrow": ("arrow", "tables"), "obstore": ("objects", "stores"), "ray": ("ray", "fffs.ray")}
    monkeypatch.setattr(doctor_packages, "_EXTRAS", extras)
    found = by_name(doctor_packages.check_packages())
    assert (found["pyarrow"].state, found["obstore"].state) == ("hint", "ok")
    assert found["pyarrow"].found.startswith("15.0.2 is too old; fffs needs 1")
    assert found["pyarrow"].cure == "pip install --upgrade 'fffs[arrow]'"
    assert (found["ray"].state, found["ray"].cure) == ("hint", "pip install 'fffs[ray]'")


def test_what_an_interrupted_removal_left_beside_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, metadata in (("a/obstore-0.9.0", ""), ("b/obstore-0.12.0", "Name: obstore\nVersion: 0.12.0\n")):
        (tmp_path / f"{folder}.dist-info").mkdir(parents=True)
        (tmp_path / f"{folder}.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert doctor_packages._version("obstore") == "0.12.0"


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"{name}: libfuse3.so.3: cannot open shared object file")

    monkeypatch.setattr(doctor_mounting, "version", lambda name: "3.4")
    monkeypatch.setattr(doctor_mounting, "import_module", broken)
    found = by_name(doctor_mounting.check_mounting())["pyfuse3"]
    assert (found.state, "libfuse3.so.3" in found.found) == ("problem", True)
    assert "python3-pyfuse3" in found.cure


def test_the_extras_exist() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for extra, _ in doctor_packages._EXTRAS.values():
        assert f"\n{extra} = [" in text


def test_an_ordinary_user(tmp_path: Path) -> None:
    with as_nobody(tmp_path):
        found = by_name(doctor_mounting.check_mounting())
        assert (found["mount -o kernel"].state == "hint") or os.geteuid() == 0
        assert found["fusermount3"].found != "not installed, and not needed by root"


@pytest.mark.parametrize(("users", "state"), [("0 0 4294967295", "ok"), ("0 1000 1", "hint")])
def test_root_of_a_container(monkeypatch: pytest.MonkeyPatch, users: str, state: str) -> None:
    values = {"/proc/self/uid_map": f"         {users}", "/proc/filesystems": "\terofs"}
    monkeypatch.setattr(doctor_mounting, "setting", values.get)
    monkeypatch.setattr("platform.release", lambda: "6.12.0")
    assert doctor_mounting._kernel(by_root=True).state == state


def test_it_imports_no_large_package() -> None:
    code = "import sys\nfrom fffs.cli.program import main\nsys.argv = ['fffs', 'doctor']\n"
    code += (
        "try:\n main()\nexcept SystemExit:\n pass\nassert not {'torch', 'dask', 'ray', 'obstore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    assert lib.fffs_engine_select(engine.name().encode()) == 0


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    """Packs and files that are whole and damaged: its names have the check that finds it."""
    (tmp_path / "f" / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (tmp_path / "f" / name).write_bytes(name.encode() * 1000)
    fffs.pack_folder(tmp_path / "f", tmp_path / "whole.ffr")
    fffs.pack_folder(tmp_path / "f", tmp_path / "aligned.ffr", align=True)
    whole = (tmp_path / "whole.ffr").read_bytes()
    (tmp_path / "cut.ffr").write_bytes(whole[:3000])
    (tmp_path / "names.ffr").write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    (tmp_path / "header.ffr").write_bytes(whole[:9] + b"X" + whole[10:])
    (tmp_path / "records.ffr").write_bytes(record_file([b"a", b"b"]))
    (tmp_path / "text").write_bytes(b"hello\n" * 100)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "states", "texts"),
    [
        ("whole.ffr", "ok ok ok", ["intact: 2 files in 2 folders", "needs a pack of fffs pack --align"]),
        ("aligned.ffr", "ok ok ok", ["intact: 2 files in 2 folders", "with a daemon, or with -o kernel"]),
        ("records.ffr", "ok ok ok", ["2 records", "no packed folder", "as numbered files"]),
        ("cut.ffr", "ok problem ok", ["truncated: ", "its names, if it was a packed folder"]),
        ("names.ffr", "ok problem problem", ["tree", "refused: its names are damaged"]),
        ("header.ffr", "problem", ["or damaged", "copy it again"]),
        ("text", "hint", ["not a record file, or damaged", "name a record file"]),
    ],
)
def test_it_looks_into_a_pack_and_reads_no_record(packs: Path, name: str, states: str, texts: list[str]) -> None:
    found = list(doctor_files.check_file(str(packs / name)))[3:]
    assert " ".join(finding.state.value for finding in found) == states
    said = "\n".join(f"{finding.found} {finding.cure}" for finding in found)
    assert [text for text in texts if text not in said] == []
    assert all(bool(finding.cure) == (finding.state.value != "ok") for finding in found)


@pytest.mark.parametrize(("name", "code"), [("whole.ffr", Exit.OK), ("cut.ffr", Exit.FORMAT)])
def test_the_exit_code_tells_of_a_damaged_file(packs: Path, name: str, code: Exit) -> None:
    done = doctor("--json", packs / name)
    usable = not any(f["state"] == "problem" for f in json.loads(done.stdout)["findings"] if f["subject"] == "mounting")
    assert done.returncode == (code if usable else Exit.MOUNT)


@pytest.mark.parametrize(("option", "state"), [("-Ur", "problem"), ("-Urm", None)])
def test_root_of_a_user_namespace_needs_a_mount_namespace(option: str, state: str | None) -> None:
    done = subprocess.run(
        ["unshare", option, sys.executable, "-m", "fffs", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip("user namespaces are forbidden here")
    found = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)["findings"]}
    assert found.get("namespace") == state
