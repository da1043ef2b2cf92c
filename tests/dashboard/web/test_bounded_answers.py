"""However many rows there are, answers are bounded: every address that can be read, of REST and of pages, beside 10,000."""

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Model as Row
from django.test import Client
from django.urls import URLPattern
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard import page_urls, rest_urls
from dashboard.models import (
    ApiToken,
    AuditEntry,
    Example,
    Job,
    Model,
    ModelState,
    ModelSync,
    Release,
    Rollout,
    RolloutFigures,
    RolloutMismatch,
    RolloutSample,
    Server,
    ServerEvent,
    ServerState,
    Upload,
    UploadFile,
)
from dashboard.rollouts.figures import sums_of
from dashboard.rollouts.plan import default_plan
from tests.dashboard.many_rows import SIGNATURE, deepen
from tests.dashboard.rollouts.reports import mismatch, rollout_report

pytestmark = pytest.mark.django_db

ROWS = 10_000
WORDS = "what somebody wrote of it, in so many words. " * 4
# What stands for the parts of addresses; a route with another part needs a line here.
PARTS: dict[str, Any] = {
    "name": "relu",
    "number": 1,
    "version": "1",
    "rollout": "r-0",
    "example": "example 0",
    "pk": 1,
    "source": "audit",
    "capture": UUID(int=1),
    "kind": "burn_fast",
    "server": "relu",
    "model": "relu",
}
# Of what lies below an address.
BELOW = {"uploads/": {"pk": UUID(int=1), "number": 0}, "environments/": {"name": "production"}}
QUERIES = {"api_compare": {"a": "v1", "b": "v2"}, "api_metrics": {"server": "relu"}, "metrics": {"server": "relu"}}

LARGEST_PAGE = 500
REST_BYTES = 4 << 20
PAGE_BYTES = 1 << 20
PAGE_ROWS = 700  # of tables, lists and choices together
# What tells the whole of one thing, because that was asked.
WHOLE = {
    "api_schema": "the description of REST",
    "api_export": "the installation as text, in an archive",
    "api_upload": "the files of one upload, at most 10,000, which its sender needs to go on",
    "activity_csv": "an export, at most 20,000 rows",
    "activity_json": "an export, at most 20,000 rows",
}


@pytest.fixture(scope="module")
def administrator(django_db_setup: None, django_db_blocker: Any) -> Iterator[User]:
    """An administrator, beside 10,000 rows in every table that people or models make grow."""
    with django_db_blocker.unblock(), transaction.atomic():
        person = get_user_model().objects.create_superuser("root", password="a long secret")
        server = Server.objects.create(name="relu", http_url="http://127.0.0.1:1", bundled=True)
        ServerState.objects.create(server=server, state="ready", started_at=timezone.now())
        relu = Model.objects.create(name="relu", desired_state="loaded", last_number=1, description=WORDS)
        _fill_models(server, relu)
        _fill_people(person, server, relu)
        _fill_uploads(person)
        _fill_rollouts(server, relu)
        yield person
        transaction.set_rollback(True)


def _repeat(first: Row, **changed: str) -> None:
    """Make 10,000 rows of one: the others by the database itself, which is quick. changed: column -> SQL with a number n."""
    key = first._meta.pk
    assert key is not None
    columns = {field.column: f'"{field.column}"' for field in first._meta.concrete_fields}
    columns |= {str(key.column): f'"{key.column}" + n'} | changed
    table, values = first._meta.db_table, ", ".join(columns.values())
    names = ", ".join(f'"{name}"' for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS - 1}) "
            f'INSERT INTO "{table}" ({names}) SELECT {values} FROM "{table}", numbers WHERE "{key.column}" = %s',
            [key.get_db_prep_value(first.pk, connection)],
        )


def _fill_models(server: Server, relu: Model) -> None:
    deepen(server, relu, versions=1, releases=1)
    _repeat(relu.versions.get(), number="number + n")
    release = relu.releases.get()
    _repeat(release, number="number + n")
    other = Model.objects.create(pk=100_000, name="m", desired_state="loaded", description=WORDS, tags=["tag"])
    _repeat(other, name="'m' || n", tags="'[\"tag' || n || '\"]'")
    release.pk, release.number, release.model = 100_000, 1, other
    Release.objects.bulk_create([release])
    _repeat(release, model_id="model_id + n")
    state = ModelState.objects.create(server=server, model_name="m", version=1, state="UNAVAILABLE", reason=WORDS)
    _repeat(state, model_name="'m' || n")
    _repeat(ModelSync.objects.create(server=server, model=other, error=WORDS), model_id="model_id + n")
    _repeat(ServerEvent.objects.create(server=server, kind="crashed", model_name="relu", message=WORDS))


def _fill_people(person: User, server: Server, relu: Model) -> None:
    _repeat(get_user_model().objects.create(username="person"), username="'person' || n")
    token = ApiToken.objects.create(user=person, name="t", prefix="abcd", hash="0", rights=["read"])
    _repeat(token, hash="'hash' || n")
    entry = AuditEntry.objects.create(pk=1, actor_name="olga", action="a", model=relu, model_name="relu", summary=WORDS)
    _repeat(entry, actor_name="'person' || n", model_name="'gone' || n")
    for pk, state in ((1, "failed"), (100_000, "running")):
        job = Job.objects.create(pk=pk, kind="archive", title=WORDS, state=state, log=WORDS, error=WORDS, model=relu)
        _repeat(job)
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}
    kept = Example.objects.create(model=relu, name="example 0", request=request, golden=True, signature=SIGNATURE)
    _repeat(kept, name="'example ' || n")


def _fill_uploads(person: User) -> None:
    upload = Upload.objects.create(pk=UUID(int=1), user=person, model_name="relu", expires_at=timezone.now())
    _repeat(upload, id="printf('%%032x', n + 1)")
    _repeat(UploadFile.objects.create(upload=upload, number=0, path="a.json", size=1), number="n", path="n || '.json'")


def _fill_rollouts(server: Server, relu: Model) -> None:
    given: dict[str, Any] = {"kind": "canary", "stable": 1, "candidate": 2, "plan": default_plan("canary")}
    now = timezone.now()
    ended = Rollout.objects.create(model=relu, name="ended", state="rolled_back", reason=WORDS, ended_at=now, **given)
    _repeat(ended, name="'ended-' || n")
    stuck = Rollout.objects.create(
        pk=200_000, model_id=100_000, name="stuck", trouble=WORDS, step=len(given["plan"]["steps"]) - 1, **given
    )
    _repeat(stuck, name="'stuck-' || n", model_id="model_id + n")
    running = Rollout.objects.create(pk=300_000, model=relu, name="r-0", **given)
    word = rollout_report(running, stable=900, candidate=100, errors=1)
    figures = RolloutFigures.objects.create(rollout=running, server=server, report=word, every_s=10)
    _repeat(RolloutSample.objects.create(rollout=running, server=server, at=0, data=sums_of(figures)), at="10 * n")
    data: Any = {key: mismatch(1, score=1)[key] for key in ("inputs", "stable", "candidate")}  # type: ignore[literal-required]
    unlike = RolloutMismatch(pk=1, rollout=running, server=server, number=0, at=now, score=1, detail=WORDS, data=data)
    unlike.save()
    _repeat(unlike, number="n")


def _addresses(routes: list[URLPattern], below: str) -> Iterator[tuple[str, str]]:
    for route in routes:
        address = str(route.pattern)
        parts = {**PARTS, **BELOW.get(f"{address.partition('/')[0]}/", {})}
        for key in route.pattern.converters:
            address = re.sub(rf"<\w+:{key}>", str(parts[key]), address)
        yield str(route.name), f"{below}{address}"


def _longest(content: object) -> int:
    """Return how many members the longest list or object of an answer has."""
    if not isinstance(content, dict | list):
        return 0
    return max([len(content), *(_longest(one) for one in (content.values() if isinstance(content, dict) else content))])


def test_every_answer_of_rest_is_bounded(administrator: User) -> None:
    api = APIClient()
    api.force_authenticate(administrator)
    answered, wrong = set(), []
    for name, address in _addresses(rest_urls.urlpatterns, "/api/v1/"):
        if name in WHOLE:
            continue
        answer = api.get(address, {**QUERIES.get(name, {}), "page_size": 100_000})
        # 503: no server runs here.
        assert answer.status_code in (200, 400, 403, 404, 405, 503), (name, answer.status_code)
        if answer.status_code != 200:
            continue
        answered.add(name)
        rows = _longest(answer.json()) if "json" in answer["Content-Type"] else 0
        if rows > LARGEST_PAGE or len(answer.content) > REST_BYTES:
            wrong.append(f"{name}: {rows} rows, {len(answer.content)} bytes")
    assert not wrong, "\n".join(wrong)
    assert answered >= {"api_models", "api_versions", "api_releases", "api_examples", "api_jobs", "api_server_models"}
    assert len(answered) > 30


def test_every_page_is_bounded(administrator: User) -> None:
    client = Client()
    client.force_login(administrator)
    answered, wrong = set(), []
    for name, address in _addresses(page_urls.urlpatterns, "/"):
        if name in WHOLE:
            continue
        answer = client.get(address, QUERIES.get(name))
        assert answer.status_code in (200, 204, 302, 400, 404, 405), (name, answer.status_code)
        if answer.status_code != 200:
            continue
        answered.add(name)
        rows = len(re.findall(rb"<(?:tr|li|option)\b", answer.content))
        if rows > PAGE_ROWS or len(answer.content) > PAGE_BYTES:
            wrong.append(f"{name}: {rows} rows, {len(answer.content)} bytes")
    assert not wrong, "\n".join(wrong)
    assert answered >= {
        "overview",
        "models",
        "model_versions",
        "model_playground",
        "jobs",
        "servers",
        "settings",
        "upload",
    }
