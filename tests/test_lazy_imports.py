"""What is imported at its first use is imported while no thread forks: a child would wait for it for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from object_server import ObjectServer
from PIL import Image

import fffs

WATCH = """
import sys
from inside import importing
class Watch:
    def find_spec(self, name, path=None, target=None):
        if not importing.importing._inside:
            outside.append(name)
outside = []
sys.meta_path.insert(0, Watch())
"""
VERDICT = """
sys.exit(str(outside) if outside else 0)
"""


def test_reading_and_packing_import_nothing_while_another_thread_may_fork(tmp_path: Path, server: ObjectServer) -> None:
    """numpy, too, imports a part of itself when np.unique is called first, as by the first read of an object."""
    (tmp_path / "source" / "folder").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "source" / "folder" / name).write_bytes(name.encode() * 1000)
    os.link(tmp_path / "source" / "folder" / "a", tmp_path / "source" / "c")
    imports = "import fffs"
    code = """
folder, *names = sys.argv[1:]
fffs.pack_folder(f"{folder}/source", f"{folder}/again.ffr")
fffs.convert(f"{folder}/again.ffr", f"{folder}/again.bag", warn=lambda line: None)
for name in names:
    with fffs.open(name) as reader:
        reader.read([0, 1, 1])
    if name.endswith(".ffr"):
        with fffs.PackedFolder(name) as packed:
            assert bytes(packed.read(["folder/a", "c"])[1][:1]) == b"a"
"""
    paths = [tmp_path / name for name in ("p.ffr", "c.tfrecord", "c.bag")]
    fffs.pack_folder(tmp_path / "source", paths[0])
    for path in paths[1:]:
        fffs.convert(paths[0], path, warn=lambda line: None)
    urls = [server.put(path.name, path.read_bytes()) for path in paths]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", imports + WATCH + code + VERDICT, tmp_path, *paths, *urls]
    subprocess.run(command, timeout=120, check=True, env=environment)


def test_nothing_is_imported_while_another_thread_may_fork(tmp_path: Path) -> None:
    """Pillow imports its plugins at the first image, and some only for a picture that needs them."""
    pixels = Image.new("RGB", (8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the orientation
    for name, image, options in (
        ("a.png", pixels, {"exif": exif}),
        ("b.png", pixels.convert("P"), {}),
        ("c.jpeg", pixels, {"exif": exif}),
        ("d.jpeg", pixels, {"format": "MPO", "save_all": True, "append_images": [pixels]}),
    ):
        image.save(tmp_path / name, **options)
    imports = """
import os
import numpy as np
from fffs.granular import decoders, encoders
"""
    code = """
for name in sorted(os.listdir(sys.argv[1])):
    with open(f"{sys.argv[1]}/{name}", "rb") as file:
        assert decoders[name[2:]](file.read()).shape[:2] == (8, 8)
for name, value in {"png": np.zeros((4, 4), np.uint8), "jpeg": np.zeros((4, 4, 3), np.uint8), "msgpack": {"a": [1]},
                    "tree": [np.zeros(3), "a"], "array": np.zeros(3, "<M8[s]")}.items():
    decoders[name](encoders[name](value))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for kind in ("png", "jpeg"):  # whatever is decoded first
        (tmp_path / kind).mkdir()
        for path in tmp_path.glob(f"?.{kind}"):
            path.rename(tmp_path / kind / path.name)
        command = [sys.executable, "-c", imports + WATCH + code + VERDICT, tmp_path / kind]
        subprocess.run(command, timeout=120, check=True, env=environment)
