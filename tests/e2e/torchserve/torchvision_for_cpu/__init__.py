"""A folder for PYTHONPATH: torchvision of TorchServe's environment, importable by this project's Python beside its PyTorch."""

import shutil
from pathlib import Path

from benchmarks.servers.environments import made


def python_path(folder: Path) -> str:
    """Make the folder, and return what PYTHONPATH must hold for `import torchvision`."""
    (packages,) = made("torchserve").glob("lib/python*/site-packages")
    folder.mkdir()
    for name in ("torchvision", "torchvision.libs"):
        (folder / name).symlink_to(packages / name)
    shutil.copy(Path(__file__).with_name("sitecustomize.py"), folder)
    return str(folder)
