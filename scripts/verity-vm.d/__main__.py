"""What scripts/verity-vm runs in the machine, which has an empty disk: packs, mounts and damage under fs-verity."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

DEVICE, DISK = "/dev/vda", Path("/mnt/disk")
MARKER = b"this text is damaged on the disk"


def run(*command: object) -> str:
    """Run a command that must succeed, and return its output and errors."""
    return fails(0, *command)


def fails(code: int, *command: object) -> str:
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print("$", *command, f"\n{done.stdout}", end="", flush=True)
    assert done.returncode == code, done.returncode
    return done.stdout


def fffs(*arguments: object, code: int = 0) -> str:
    return fails(code, sys.executable, "-m", "fffs", *arguments)


def has_error(path: Path) -> bool:
    """Whether reading a file fails as a damaged disk does."""
    try:
        path.read_bytes()
    except OSError as error:
        assert error.errno == errno.EIO, error
        return True
    return False


def flip_bit() -> None:
    """Change the first bit of the marker on the disk below the file system; the second time, back again."""
    os.sync()
    with open(DEVICE, "r+b", buffering=0) as device:
        content = Path(DEVICE).read_bytes()
        places = [at for at in range(0, len(content), 512) if content.startswith(MARKER[1:], at + 1)]
        assert places
        for at in places:
            os.pwrite(device.fileno(), bytes([content[at] ^ 1]), at)
        os.fsync(device.fileno())
    Path("/proc/sys/vm/drop_caches").write_text("3")


def make_folder() -> Path:
    folder = Path("/tmp/folder")
    folder.mkdir()
    (folder / "marked").write_bytes(MARKER + bytes(5000))
    (folder / "large").write_bytes(random.Random("large").randbytes(3 << 20))
    for k in range(200):
        (folder / f"small{k}").write_bytes(b"%d" % k * k)
    return folder


def main() -> None:
    """Try everything."""
    folder, pack, kept, at = make_folder(), DISK / "p.ffr", DISK / "p.ffr.fsverity", Path("/mnt/at")
    DISK.mkdir()
    run("mkfs.ext4", "-q", "-b", 1024, "-O", "verity", DEVICE)
    run("mount", DEVICE, DISK)
    assert "4096 bytes" in fffs("pack", "--align", "--verity", folder, pack, code=2)
    run("umount", DISK)
    run("mkfs.ext4", "-q", "-F", "-b", 4096, DEVICE)
    run("mount", DEVICE, DISK)
    assert "tune2fs -O verity" in fffs("pack", "--align", "--verity", folder, pack, code=2)
    assert not pack.exists()
    run("umount", DISK)
    run("tune2fs", "-O", "verity", DEVICE)
    run("mount", DEVICE, DISK)
    for _ in range(2):  # the second time, it replaces a protected pack
        fffs("pack", "--align", "--verity", folder, pack)
        assert run("fsverity", "measure", pack).split()[0] == kept.read_text().strip()
        assert run("fsverity", "digest", pack).split()[0] == kept.read_text().strip()
    assert sorted(os.listdir(DISK)) == ["lost+found", "p.ffr", "p.ffr.fsverity"]
    assert "as kept" in fffs("info", pack) and "ok" in fffs("verify", pack)
    try:
        pack.open("r+b")
    except PermissionError:
        pass
    else:
        raise AssertionError

    for place in (DISK, "/dev/shm"):  # without and with loop devices
        os.environ["TMPDIR"] = str(place)
        said = fffs("mount", "-o", "kernel", pack, at)
        assert "the digest is the one that is kept, and fs-verity verifies" in said
        run("losetup", "-a")
        run("diff", "-r", folder, at)
        fffs("umount", at)

    run("cp", pack, DISK / "copy.ffr")
    run("cp", kept, DISK / "copy.ffr.fsverity")
    assert "run fsverity enable" in fffs("mount", "-o", "kernel", DISK / "copy.ffr", at, code=10)
    run("fsverity", "enable", DISK / "copy.ffr")
    fffs("mount", "-o", "kernel", DISK / "copy.ffr", at)
    fffs("umount", at)
    (folder / "more").write_text("more")
    fffs("convert", "--align", "--verity", folder, DISK / "more.ffr")
    os.replace(DISK / "more.ffr", DISK / "copy.ffr")
    assert "so it is another file" in fffs("mount", "-o", "kernel", DISK / "copy.ffr", at, code=10)

    for place in (DISK, "/dev/shm"):
        os.environ["TMPDIR"] = str(place)
        fffs("mount", "-o", "kernel", pack, at)
        assert not has_error(at / "marked")
        flip_bit()
        assert has_error(at / "marked") and not has_error(at / "large")
        fffs("umount", at)
        fffs("mount", "-o", "kernel", pack, at)
        assert has_error(at / "marked") and not has_error(at / "small7")
        fffs("umount", at)
        assert "cannot be read" in fffs("verify", pack, code=5)
        flip_bit()
        assert "ok" in fffs("verify", pack)
    print("verity-vm: all good")


if __name__ == "__main__":
    main()
