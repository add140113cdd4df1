"""Checks of mounting: the device, the rights, the programs and the packages that it needs."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import pwd
import re
import shutil
import stat
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from fffs.cli.checks.finding import Finding, good, hint, problem, setting
from fffs.mount.system.kernel import CONTAINER, DEVICE, NO_DEVICE, NO_NAME, NO_RIGHT, PACKAGES, UNCONFINED

CONFIGURATION, SYSTEM_LOG = "/etc/fuse.conf", "/dev/log"
TABLE = "/etc/mtab"
_FUSE = (10, 229)  # the number of its device: Documentation/admin-guide/devices.txt of Linux
_ALL_USERS = "0 0 4294967295"  # the map of the first user namespace
_SYS_ADMIN = 21  # the number of CAP_SYS_ADMIN
_PRIVILEGES = (
    "allow privilege escalation here (Kubernetes: allowPrivilegeEscalation: true; docker: without --security-opt "
    "no-new-privileges; systemd: NoNewPrivileges=no)"
)
# AppArmor's, of Docker, containerd and Podman, all of which forbid to mount.
_PROFILES = ("docker-default", "cri-containerd.apparmor.d", "containers-default", "crio-default")
_ALLOW_MOUNTS = f"start the container with {UNCONFINED} (Kubernetes: appArmorProfile: type: Unconfined)"
_GET_OWNER = 0xB701  # <linux/nsfs.h>: NS_GET_USERNS
_FILE_BACKED = (6, 12)  # Linux; before that, EROFS needs a loop device


def check_mounting() -> Iterator[Finding]:
    """Yield what is known of mounting on this machine, by this user."""
    for package in ("pyfuse3", "trio"):
        yield _package(package)
    yield _device()
    by_root = _may_mount()
    if by_root and _has_foreign_mounts():
        yield problem("namespace", "this user namespace may not mount in its mount namespace", "unshare that, too (-m)")
    yield from _profile()
    yield _fusermount(by_root)
    yield _others(by_root)
    yield _kernel(by_root)
    if os.path.exists(SYSTEM_LOG):
        yield good("system log", f"{SYSTEM_LOG}: errors of mounts are in it")
    else:
        yield hint("system log", f"there is no {SYSTEM_LOG}", "errors of mounts are lost: mount -o log=FILE")


def _package(name: str) -> Finding:
    try:
        found = version(name)
        import_module(name)
    except PackageNotFoundError:  # which is an ImportError, too
        return problem(name, "not installed, which a mount needs", PACKAGES)
    except ImportError as error:  # of a library that it needs, or half of it was removed
        return problem(name, f"{found} is installed, but cannot be imported: {error}", PACKAGES)
    return good(name, found)


def _may_mount() -> bool:
    """Whether this process may call mount(2)."""
    return os.geteuid() == 0 and _has_sys_admin("CapEff")


def _has_sys_admin(capabilities: str) -> bool:
    """Whether CAP_SYS_ADMIN is in a set of capabilities of this process, or the kernel does not tell."""
    found = _status(capabilities)
    return not found or bool(int(found, 16) >> _SYS_ADMIN & 1)


def _status(field: str) -> str:
    """Return a field of the status of this process, or an empty string if the kernel does not tell."""
    found = re.search(rf"^{field}:\s*(\w+)", setting("/proc/self/status") or "", re.MULTILINE)
    return found[1] if found else ""


def _has_all_users() -> bool:
    """Whether this is the first user namespace, or one like it."""
    return (setting("/proc/self/uid_map") or _ALL_USERS).split() == _ALL_USERS.split()


def _has_foreign_mounts() -> bool:
    """Whether a user namespace above ours owns the mount namespace; False if the kernel does not tell."""
    try:
        fd = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(fcntl.ioctl(fd, _GET_OWNER))
    except OSError as error:
        return error.errno == errno.EPERM
    finally:
        os.close(fd)
    return False


def _profile() -> Iterator[Finding]:
    """Yield what is known of a profile of AppArmor, under which mount(2) fails although all else is right."""
    found = setting("/proc/self/attr/apparmor/current") or setting("/proc/self/attr/current") or ""
    profile, enforced, _ = found.partition(" (enforce)")
    if enforced and profile.startswith(_PROFILES):
        yield problem("AppArmor", f"{profile} forbids to mount", _ALLOW_MOUNTS)
    elif enforced:
        yield hint("AppArmor", f"{profile} may forbid to mount", f"if mounting fails, permit it there; {_ALLOW_MOUNTS}")


def _device() -> Finding:
    try:
        status = os.stat(DEVICE)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(*_FUSE):
            return problem(DEVICE, f"is not the device of FUSE ({_FUSE[0]}:{_FUSE[1]}), but something else", NO_DEVICE)
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        what = os.strerror(error.errno or 0)
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            cure = NO_DEVICE
        elif os.geteuid() == 0:
            cure = CONTAINER
        else:
            cure = NO_RIGHT
        return problem(DEVICE, what, cure)
    return good(DEVICE, "can be opened")


def _fusermount(by_root: bool) -> Finding:
    path = shutil.which("fusermount3", os.F_OK)
    if path is None:
        if by_root:
            return good("fusermount3", "not installed, and not needed by root")
        cure = "install it: apt-get install fuse3, or dnf install fuse3"
        return problem("fusermount3", "not installed, which users other than root need to mount", cure)
    if by_root:
        return good("fusermount3", path)
    if obstacle := _obstacle(path):
        return problem("fusermount3", *obstacle)
    try:
        with open(TABLE, "rb"):
            return good("fusermount3", path)
    except OSError as error:
        found = f"{path} mounts, but most versions need {TABLE} to unmount: {error.strerror}"
        return hint("fusermount3", found, f"have root make it: ln -s /proc/self/mounts {TABLE}")


def _obstacle(path: str) -> tuple[str, str] | None:
    """Return why fusermount3 cannot become root or mount, if that is known, and what to do."""
    status = os.stat(path)
    if not os.access(path, os.X_OK):
        return (
            f"{path} may only be run by its owner and its group",
            f"have root add you to its group, which has the number {status.st_gid}",
        )
    if status.st_uid != 0 and not _has_all_users():
        return f"{path} is not root's in this user namespace", "mount outside of it, or as its root (unshare -rm)"
    if (status.st_uid != 0 or not status.st_mode & stat.S_ISUID) and not _has_capabilities(path):
        return f"{path} is not setuid root", f"have root reinstall it, or: chmod u+s {path}"
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return f"{path} is on a file system mounted nosuid", "have root change that: mount -o remount,suid"
    if _status("NoNewPrivs") == "1":
        return f"{path} cannot become root: no_new_privs is set", _PRIVILEGES
    if not _has_sys_admin("CapBnd"):
        return f"{path} cannot mount: no program here gets CAP_SYS_ADMIN", CONTAINER
    try:
        pwd.getpwuid(os.getuid())  # as fusermount3 does
    except KeyError:
        return f"{path} mounts for users with a name, and {os.getuid()} has none", NO_NAME
    return None


def _has_capabilities(path: str) -> bool:
    """Whether a program gets capabilities without being setuid."""
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _others(by_root: bool) -> Finding:
    name = "allow_other"
    if by_root:
        return good(name, "root may use it")
    lines = (setting(CONFIGURATION) or "").split("\n")
    if any(line.split("#")[0].strip() == "user_allow_other" for line in lines):
        return good(name, f"{CONFIGURATION} permits it")
    cure = f"have root add the line user_allow_other to {CONFIGURATION}"
    return hint(name, "only you see what you mount: root has not permitted more", cure)


def _kernel(by_root: bool) -> Finding:
    name, release = "mount -o kernel", platform.release()
    if not by_root:
        return hint(name, "for root only", "use the daemon (without -o kernel), or ask root")
    if not _has_all_users():
        return hint(name, "not for root of a user namespace", "use the daemon (without -o kernel)")
    known = setting("/proc/filesystems") or ""
    if not re.search(r"\berofs$", known, re.MULTILINE) and not _has_module(release, "erofs"):
        return hint(name, "the kernel has no EROFS", "use the daemon (without -o kernel)")
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if numbers >= _FILE_BACKED:
        return good(name, f"Linux {release}, EROFS from files")
    if os.path.exists("/dev/loop-control"):
        return good(name, f"Linux {release}, EROFS from loop devices")
    return hint(name, f"Linux {release} needs loop devices for it", "modprobe loop, or use Linux 6.12 or later")


def _has_module(release: str, name: str) -> bool:
    listed = setting(f"/lib/modules/{release}/modules.dep") or ""
    return re.search(rf"/{name}\.ko", listed) is not None
