"""Everything here needs a CUDA device; `pytest -m gpu tests/gpu` on a machine that has one."""

import pytest

from serving.core.devices import gpu_count


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skipif(gpu_count() == 0, reason="this machine has no CUDA device")
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            item.add_marker(missing)
