"""A clock for tests of history."""

from unittest.mock import Mock

import pytest

from dashboard.metrics import selectors

NOW = 1_749_999_600  # a multiple of every resolution


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the tests run, charts are read a few minutes after NOW: the rows of single seconds are still there."""
    monkeypatch.setattr(selectors, "time", Mock(time=lambda: NOW + 300.0))
