"""A model with a live version and one that is to follow it."""

from collections.abc import Callable

import pytest
from django.utils import timezone

from dashboard.models import Model, ReleaseSpan, Server, Version
from dashboard.releases.selectors import newest_release


@pytest.fixture
def model(relu: Version, published: Callable[..., Version], server: Server) -> Model:
    """Version 1 is live; version 2 is published."""
    published()
    served(relu.model, server)
    return relu.model


def served(model: Model, server: Server) -> None:
    """Its newest release has begun to serve."""
    now = timezone.now()
    ReleaseSpan.objects.filter(model=model, server=server, ended_at=None).update(ended_at=now)
    ReleaseSpan.objects.create(release=newest_release(model), model=model, server=server, started_at=now)
