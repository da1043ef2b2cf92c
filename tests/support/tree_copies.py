"""Copies of the project's packages, which a test changes."""

import shutil
from pathlib import Path

from tests.support.serving_process import ROOT


def copy_packages(folder: Path, *packages: str) -> None:
    """Copy packages and other folders of the project into a folder, with the bytecode that lies beside the sources: to compile
    them again would take seconds."""
    # Another process may be writing bytecode, to a file with a longer name that it then renames.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    for package in packages:
        shutil.copytree(ROOT / package, folder / package, ignore=unfinished)
