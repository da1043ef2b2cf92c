"""A model with a live version and one that is to follow it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.models import Model, ReleaseSpan, Server, Version
from dashboard.releases.selectors import wanted_release


@pytest.fixture
def model(relu: Version, published: Callable[..., Version], server: Server) -> Model:
    """Version 1 is live; version 2 is published."""
    published()
    served(relu.model, server)
    return relu.model


@pytest.fixture
def remotes(settings: Any, data_folder: Path) -> Path:
    """The file of the other servers that rollouts may call."""
    settings.TRAFFIC_REMOTES = data_folder / "remotes.json"
    listed: dict[str, Any] = {"http://fastapi:80": {}, "http://host:8000": {}, "http://prom:9090": {}}
    settings.TRAFFIC_REMOTES.write_text(json.dumps(listed))
    return Path(settings.TRAFFIC_REMOTES)


def served(model: Model, server: Server) -> None:
    """Its newest release has begun to serve."""
    now = timezone.now()
    ReleaseSpan.objects.filter(model=model, server=server, ended_at=None).update(ended_at=now)
    release = wanted_release(model)
    ReleaseSpan.objects.create(release=release, model=model, server=server, started_at=now)
