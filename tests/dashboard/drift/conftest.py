"""A model whose requests are captured."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def capture_folder(settings: Any, tmp_path: Path) -> Path:
    settings.CAPTURE_DIR = tmp_path / "captures"
    return tmp_path / "captures"
