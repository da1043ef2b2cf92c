"""The installation as text: exported, applied to an empty installation, exported again."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import account_update
from dashboard.accounts.tokens import auth_file_write, token_create
from dashboard.alerts.channels import channel_create, rule_create
from dashboard.alerts.switches import kind_switch
from dashboard.alerts.table import kind_of
from dashboard.catalog.services import model_describe
from dashboard.examples.services import example_create
from dashboard.measurements.services import budget_set
from dashboard.models import AlertChannel, ApiToken, AuditEntry, Example, Model, Objective, Quota, Release, Version
from dashboard.objectives.services import objective_set
from dashboard.releases.storage import managed_repository
from dashboard.truth.services import metric_set
from dashboard.usage.services import quota_set
from dashboard.versions.retention import retention_set
from dashboard.versions.services import version_annotate

pytestmark = pytest.mark.django_db(transaction=True)
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [-1.0, 0.0, 0.5, 2.0]}]}
EXPECTED = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [0.0, 0.0, 0.5, 2.0]}]}


@pytest.fixture
def root(person: Callable[..., Any]) -> Actor:
    return Actor(user=person(name="root", is_superuser=True))


@pytest.fixture
def whole(relu: Version, published: Callable[..., Version], person: Callable[..., Any], root: Actor) -> Model:
    """An installation with something of every kind that needs no capture."""
    published(model_name="wide", load=True, make_live=True)
    model = relu.model
    anna = person("operate", name="anna")
    account_update(actor=root, user=anna, groups=["vision"])
    _, secret = token_create(user=anna, actor=root, name="ci", rights=["infer"], model_names=["relu"])
    quota_set(actor=root, of="person", name="anna", limits={"requests_per_day": 1000})
    quota_set(actor=root, of="group", name="vision", limits={"requests_per_second": 2.5})
    quota_set(actor=root, of="token", name=secret[:10], limits={"rows_per_day": 5})
    model_describe(model=model, actor=root, description="Cuts below zero.\nIt is “wide”.", tags=["vision", "no"])
    version_annotate(version=relu, actor=root, note="The first one")
    objective_set(model=model, actor=root, percent=99.9, latency_ms=50)
    budget_set(model=model, actor=root, budget={"p99_ms": 10.0, "per_second": 100.0})
    retention_set(model=model, actor=root, count=3)
    metric_set(model=model, actor=root, kind="own", output="y", expression="abs(prediction - label)", limit=0.1)
    example_create(model=model, actor=root, name="a clear one", request=REQUEST, expected=EXPECTED, golden=True)
    kind_switch(kind=kind_of("load_failed"), actor=root, on=False, model=model)
    kind_switch(kind=kind_of("crashes"), actor=root, on=False)
    channel_create(actor=root, name="hook", kind="webhook", address="https://alerts.invalid/x")
    rule_create(actor=root, name="slow", figure="p99", model_name="relu", threshold=20.0)
    return model


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*arguments: object) -> str:
    out = io.StringIO()
    call_command(*map(str, arguments), stdout=out)
    return out.getvalue()


def emptied() -> None:
    """Forget every row but the administrator's account; the weights stay in the repository."""
    for table in (Model, ApiToken, Quota, AlertChannel):
        table.objects.all().delete()
    from django.contrib.auth.models import Group, User

    from dashboard.models import AlertOff, AlertRule, Upload

    User.objects.exclude(username="root").delete()
    Group.objects.exclude(name="viewers").delete()
    AlertRule.objects.all().delete()
    AlertOff.objects.all().delete()
    Upload.objects.all().delete()
    auth_file_write()


def test_a_text_makes_an_empty_installation_the_same_again(whole: Model, tmp_path: Path) -> None:
    text, again, secrets = tmp_path / "text", tmp_path / "again", tmp_path / "secrets"
    run("export", text)
    print({name: content.decode() for name, content in files(text).items()})
    emptied()
    run("apply", text, "--as", "root", "--secrets", secrets)
    run("export", again)
    assert files(again) == files(text)
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert [line.partition(":")[0] for line in secrets.read_text().splitlines()] == []
    AuditEntry.objects.all().delete()
    assert "Nothing to change" in run("apply", text, "--as", "root", "--prune")
    assert not AuditEntry.objects.exists()
