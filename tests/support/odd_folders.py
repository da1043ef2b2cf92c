"""The damage that people, programs and disks do to a model's folder: each function changes the folder of a valid model."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

CONFIG = "config.pbtxt"


def _make(kind: str, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            descriptor = os.open(path.parent, os.O_RDONLY)  # the address of a socket has at most 107 characters
            listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
            os.close(descriptor)
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    elif kind == "link to nowhere":
        path.symlink_to("nowhere")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link to its folder":
        path.symlink_to(".")


ODD: dict[str, Callable[[Path], None]] = {
    f"{name} is a {kind}": lambda folder, name=name, kind=kind: _make(kind, folder / name)
    for name, kinds in {
        CONFIG: ("folder", "pipe", "socket", "bytes", "link to nowhere", "link to itself"),
        "1/slipway.pbtxt": ("folder", "pipe", "bytes", "link to itself"),
        "1/model.onnx": ("folder", "pipe", "bytes", "link to nowhere"),
        "1": ("bytes", "pipe", "link to nowhere", "link to itself"),
        "1/beside": ("pipe", "socket", "link to itself", "link to its folder"),
    }.items()
    for kind in kinds
}
