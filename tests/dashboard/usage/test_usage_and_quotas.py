"""Who used what is shown by model, token, person, group and day, to those who may see it; quotas reach the auth file."""

import csv
import io
import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import account_update
from dashboard.accounts.tokens import token_create
from dashboard.models import AuditEntry, Quota, UsageDay
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound
from dashboard.usage.log import UsageReader
from dashboard.usage.selectors import month_of, utc_today
from dashboard.usage.services import quota_set
from repository.core.usage_log import COUNTERS, Holder
from tests.dashboard.conftest import text_of
from tests.dashboard.usage.logs import record, write_log

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(person: Callable[..., Any]) -> Actor:
    return Actor(user=person(name="root", is_superuser=True))


@pytest.fixture
def used(settings: Any) -> None:
    """Uses of today: by olga in two groups, and by a token that is gone."""
    settings.DEVICE_HOUR_PRICE, settings.DEVICE_HOUR_CURRENCY = 3.6, "EUR"
    holders = {"o" * 64: Holder("olga: ci", "olga", ("lab", "ops")), "x" * 64: Holder("=cmd", "gone", ())}
    uses = {
        ("o" * 64, "relu"): {"requests": 10, "failed": 1, "rows": 20, "compute_ns": 5_000_000_000, "bytes_in": 100},
        ("x" * 64, "relu"): {"requests": 4, "refused": 2, "compute_ns": 1_000_000_000},
        ("o" * 64, "other"): {"requests": 1},
    }
    write_log(settings.USAGE_LOG, utc_today(), record(1, uses, holders))
    UsageReader().read()


def in_auth_file(settings: Any) -> Any:
    return json.loads(Path(settings.AUTH_FILE).read_text())


def requests_by(api: APIClient, by: str) -> dict[str, int]:
    answer = api.get(f"/api/v1/usage?by={by}")
    assert answer.status_code == 200, answer.json()
    return {row["name"]: row["requests"] for row in answer.json()["rows"]}


@pytest.fixture
def root_api(root: Actor) -> APIClient:
    client = APIClient()
    client.force_authenticate(root.user)
    return client


def test_an_administrator_sees_everybody_in_five_ways(root_api: APIClient, used: None) -> None:
    assert requests_by(root_api, "model") == {"relu": 14, "other": 1}
    assert requests_by(root_api, "token") == {"olga: ci": 11, "=cmd": 4}
    assert requests_by(root_api, "person") == {"olga": 11, "gone": 4}
    assert requests_by(root_api, "group") == {"lab": 11, "ops": 11, "no group": 4}
    assert requests_by(root_api, "day") == {str(utc_today()): 15}
    whole = root_api.get("/api/v1/usage").json()
    total = whole["total"]
    assert (total["requests"], total["failed"], total["refused"], total["rows"]) == (15, 1, 2, 20)
    assert (total["compute_seconds"], total["price"], whole["currency"]) == (6.0, 0.006, "EUR")


def test_another_person_sees_their_own_use_alone(api: APIClient, used: None, as_person: Callable[..., Client]) -> None:
    assert requests_by(api, "person") == {"olga": 11}
    assert "olga" not in text_of(as_person(name="else"), "/usage/?by=person")
    csv_text = as_person(name="third").get("/usage/month.csv").content.decode()
    assert len(csv_text.splitlines()) == 1


def test_a_month_as_csv_has_a_row_a_day_token_and_model_and_no_formula(
    used: None, as_person: Callable[..., Client]
) -> None:
    client = as_person(name="boss", is_superuser=True)
    answer = client.get(f"/usage/month.csv?month={utc_today():%Y-%m}")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [(row["token"], row["model"], row["requests"], row["compute_seconds"]) for row in rows] == [
        ("'=cmd", "relu", "4", "1.000000000"),
        ("olga: ci", "other", "1", "0.000000000"),
        ("olga: ci", "relu", "10", "5.000000000"),
    ]
    assert (rows[2]["groups"], rows[2]["price"]) == ("lab; ops", "0.005000000")
    for month in ("2026-13", "x", "2026-1", "0000-01", "２026-01"):
        assert client.get("/usage/month.csv", {"month": month}).status_code == 400
    assert month_of("2024-02").last.day == 29


def test_the_rows_of_a_csv_add_up_to_the_month_exactly(
    settings: Any, root_api: APIClient, as_person: Callable[..., Client]
) -> None:
    settings.DEVICE_HOUR_PRICE = 2.5
    random = Random(5)
    month = month_of(f"{utc_today():%Y-%m}")
    for day in {month.first, month.first + timedelta(days=13), month.last, month.last + timedelta(days=1)}:
        uses = {
            (f"{token:064}", name): {counter: random.randrange(1, 10**12) for counter in COUNTERS}
            for token in range(7)
            for name in ("relu", "other")
        }
        write_log(settings.USAGE_LOG, day, record(1, uses))
    UsageReader().read()
    text = as_person(name="boss", is_superuser=True).get(f"/usage/month.csv?month={month.name}").content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 3 * 7 * 2
    total = root_api.get(f"/api/v1/usage?month={month.name}").json()["total"]
    for counter in COUNTERS:
        if counter != "compute_ns":
            assert sum(int(row[counter]) for row in rows) == total[counter]
    exact = sum(UsageDay.objects.filter(day__lte=month.last).values_list("compute_ns", flat=True))
    assert sum(Decimal(row["compute_seconds"]) for row in rows) * 10**9 == exact
    assert abs(sum(Decimal(row["price"]) for row in rows) - Decimal(total["price"])) < Decimal("1e-7")
    assert sum(row["requests"] for row in root_api.get("/api/v1/usage?by=day").json()["rows"]) == total["requests"]


def test_a_person_reads_which_quota_is_used_up_when_it_begins_anew_and_who_can_raise_it(
    used: None, actor: Actor, root: Actor, as_person: Callable[..., Client]
) -> None:
    assert actor.user is not None
    account_update(actor=root, user=actor.user, groups=["lab"])
    quota_set(actor=root, of="group", name="lab", limits={"requests_per_day": 12})
    client = Client()
    client.force_login(actor.user)
    page = text_of(client, "/usage/")
    assert "used up" in page
    assert "begin anew at midnight UTC" in page
    assert "root can raise a limit." in page
    assert "Set a quota" not in page
    boss = text_of(as_person(name="boss", is_superuser=True), f"/usage/?quota={Quota.objects.get().pk}")
    assert '<option value="group" selected>' in boss
    assert 'value="lab"' in boss
    assert 'value="12"' in boss


def test_the_page_shows_use_and_how_much_of_a_quota_is_left(
    used: None, root: Actor, as_person: Callable[..., Client]
) -> None:
    account_update(actor=root, user=root.user, groups=["lab"]) if root.user else None
    quota_set(actor=root, of="group", name="lab", limits={"requests_per_day": 12, "requests_per_second": 5})
    page = text_of(as_person(name="boss", is_superuser=True), "/usage/?by=token")
    assert "olga: ci" in page
    assert "12 of 12" in page
    assert "used up" in page


def test_quotas_groups_and_people_are_in_the_auth_file(settings: Any, actor: Actor, root: Actor) -> None:
    assert actor.user is not None
    token = token_create(user=actor.user, actor=actor, name="ci", rights=["infer"])[0]
    account_update(actor=root, user=actor.user, groups=["lab", " ops ", ""])
    entry = in_auth_file(settings)["tokens"][1]
    assert (entry["person"], entry["groups"]) == ("olga", ["lab", "ops"])
    quota_set(actor=root, of="person", name="olga", limits={"requests_per_day": 5})
    quota_set(actor=root, of="token", name=token.prefix, limits={"requests_per_second": 0.5})
    quota_set(actor=root, of="person", name="olga", limits={"rows_per_day": 7})
    assert in_auth_file(settings)["quotas"] == [
        {"of": "person", "name": "olga", "rows_per_day": 7},
        {"of": "token", "name": token.hash, "requests_per_second": 0.5},
    ]
    assert AuditEntry.objects.filter(action="quota.set").count() == 3
    account_update(actor=root, user=actor.user, groups=[])
    assert in_auth_file(settings)["tokens"][1]["groups"] == []


def test_wrong_quotas_and_groups_are_refused_with_a_sentence(actor: Actor, root: Actor) -> None:
    with pytest.raises(Forbidden):
        quota_set(actor=actor, of="person", name="olga", limits={"rows_per_day": 1})
    for of, name, error in (("person", "nobody", NotFound), ("group", "viewers", NotFound), ("planet", "x", Invalid)):
        with pytest.raises(error):
            quota_set(actor=root, of=of, name=name, limits={"rows_per_day": 1})
    for value in (0, -1, 1.5, True, float("nan"), float("inf"), 10**13):
        with pytest.raises(Invalid, match="whole number above 0"):
            quota_set(actor=root, of="person", name="olga", limits={"rows_per_day": value})
    with pytest.raises(Invalid, match="at least one limit"):
        quota_set(actor=root, of="person", name="olga", limits={})
    assert actor.user is not None
    for name in ("viewers", "x" * 151, "a\nb"):
        with pytest.raises(Invalid):
            account_update(actor=root, user=actor.user, groups=[name])
    assert not Quota.objects.exists()


def test_a_quota_is_set_listed_and_removed_over_rest(root_api: APIClient, api: APIClient, actor: Actor) -> None:
    body = {"of": "person", "name": "olga", "compute_seconds_per_day": 1.5}
    assert api.post("/api/v1/usage/quotas", body, format="json").status_code == 403
    made = root_api.post("/api/v1/usage/quotas", body, format="json")
    assert (made.status_code, made.json()["whose"], made.json()["used_today"]) == (
        201,
        "olga",
        {"compute_seconds_per_day": 0.0},
    )
    assert [one["name"] for one in api.get("/api/v1/usage/quotas").json()["results"]] == ["olga"]
    address = f"/api/v1/usage/quotas/{made.json()['id']}"
    assert (api.delete(address).status_code, root_api.delete(address).status_code) == (403, 204)
    assert root_api.delete(address).status_code == 404
    assert root_api.post("/api/v1/usage/quotas", {**body, "rows_per_day": "x"}, format="json").status_code == 400


def test_a_form_with_a_wrong_number_keeps_what_was_typed(as_person: Callable[..., Client]) -> None:
    client = as_person(name="boss", is_superuser=True)
    answer = client.post("/usage/quotas", {"of": "person", "name": "boss", "rows_per_day": "many"})
    assert answer.status_code == 400
    assert "Expected rows a day as a number, got &#x27;many&#x27;" in answer.content.decode()
    assert 'value="many"' in answer.content.decode()
    assert client.post("/usage/quotas", {"of": "person", "name": "boss", "rows_per_day": "3"}).status_code == 302
    quota = Quota.objects.get()
    assert client.post(f"/usage/quotas/{quota.pk}/remove").status_code == 302
    assert not Quota.objects.exists()
