"""An environment of three servers, whose reports are written by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.fleet.services import wanted_set
from dashboard.models import Model, ModelState, ModelSync, Release, Server, ServerEnvironment, ServerState, Version
from dashboard.releases import life
from dashboard.servers.wanted import wanted_models


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    """Two releases: of version 1, and of version 2."""
    published(make_live=True)
    return published(make_live=True).model


@pytest.fixture
def numbers(model: Model) -> tuple[int, int]:
    return tuple(  # type: ignore[return-value]
        next(one.number for one in model.releases.order_by("number") if one.versions == [version]) for version in (1, 2)
    )


@pytest.fixture
def eu(model: Model, numbers: tuple[int, int], actor: Actor) -> ServerEnvironment:
    """Three servers in two zones, which serve the first release."""
    made = ServerEnvironment.objects.create(name="eu", everything=False)
    for name, zone in (("eu-1", "b"), ("eu-2", "a"), ("eu-3", "a")):
        server = Server.objects.create(name=name, environment=made, zone=zone, http_url=name)
        ServerState.objects.create(server=server)
    wanted_set(environment=made, model=model, actor=actor, release=numbers[0])
    for server in made.servers.all():
        report(server)
    return made


def report(server: Server, *, error: str = "") -> None:
    """Let a server answer, and load what is wanted there, as `watch` records it."""
    server.refresh_from_db()
    ServerState.objects.filter(server=server).update(state="ready", checked_at=timezone.now())
    for one in wanted_models(server):
        if error:
            ModelSync.objects.filter(server=server, model=one.model_id).update(error=error, attempts=1)
            continue
        assert one.release is not None
        release = Release.objects.get(pk=one.release)
        ModelSync.objects.update_or_create(
            server=server, model_id=one.model_id, defaults={"applied_generation": one.generation, "release": release}
        )
        ModelState.objects.filter(server=server).delete()
        for version in release.versions:
            ModelState.objects.create(server=server, model_name=one.name, version=version, state="READY")
        life.passed(release=release, server=server)


def start(api: APIClient, number: int, **more: Any) -> Any:
    body = {"model": "relu", "release": number, **more}
    return api.post("/api/v1/environments/eu/deployments", body, format="json")
