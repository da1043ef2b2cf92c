"""What people do to a model's folder by hand is said on the page, and over when it is put right."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings

from dashboard.catalog.selectors import model_summary
from dashboard.configuration.drift import drift_check
from dashboard.models import Version
from tests.dashboard.processes import FixedServer
from tests.dashboard.watch.test_watch import inference, ready, watch

pytestmark = pytest.mark.django_db
__all__ = ["inference"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_version_folder_that_goes_and_comes_back_is_missed_and_served_again(
    inference: FixedServer, published: Callable[..., Version], count: int
) -> None:
    """Where there is another version, the server serves that meanwhile."""
    for _ in range(count):
        version = published(load=True)
    folder, aside = Path(settings.MODEL_REPOSITORY, "relu", str(count)), Path(settings.STAGING_DIR, "aside")

    def summary() -> tuple[str, str]:
        found = model_summary(version.model)
        return found.state, found.reason

    def take_away() -> None:
        shutil.move(folder, aside)
        drift_check()
        inference.kill()
        inference.start()

    def missed() -> bool:
        state, reason = summary()
        return state == ("failed" if count == 1 else "degraded") and "folder" in reason

    def put_back() -> None:
        shutil.move(aside, folder)
        drift_check()

    watch(
        inference.row(),
        (inference.start, ready("relu")),
        (take_away, missed),
        (put_back, lambda: summary() == ("ready", "")),
    )
