"""What is imported at its first use is imported while no thread forks: a child would wait for it for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from object_server import ObjectServer

import fffs


def test_reading_and_packing_import_nothing_while_another_thread_may_fork(tmp_path: Path, server: ObjectServer) -> None:
    """numpy, too, imports a part of itself when np.unique is called first, as by the first read of an object."""
    (tmp_path / "source" / "folder").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "source" / "folder" / name).write_bytes(name.encode() * 1000)
    os.link(tmp_path / "source" / "folder" / "a", tmp_path / "source" / "c")
    code = """
import sys
import fffs
from inside import importing
class Watch:
    def find_spec(self, name, path=None, target=None):
        if not importing.importing._inside:
            outside.append(name)
outside = []
sys.meta_path.insert(0, Watch())
folder, *names = sys.argv[1:]
fffs.pack_folder(f"{folder}/source", f"{folder}/again.ffr")
fffs.convert(f"{folder}/again.ffr", f"{folder}/again.bag", warn=lambda line: None)
for name in names:
    with fffs.open(name) as reader:
        reader.read([0, 1, 1])
    if name.endswith(".ffr"):
        with fffs.PackedFolder(name) as packed:
            assert bytes(packed.read(["folder/a", "c"])[1][:1]) == b"a"
sys.exit(str(outside) if outside else 0)
"""
    paths = [tmp_path / name for name in ("p.ffr", "c.tfrecord", "c.bag")]
    fffs.pack_folder(tmp_path / "source", paths[0])
    for path in paths[1:]:
        fffs.convert(paths[0], path, warn=lambda line: None)
    urls = [server.put(path.name, path.read_bytes()) for path in paths]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code, tmp_path, *paths, *urls]
    subprocess.run(command, timeout=120, check=True, env=environment)
