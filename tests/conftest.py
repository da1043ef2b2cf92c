"""What holds for every test."""

import pytest

from tests.support import exploring

exploring.use_profile()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    exploring.explore(items)
