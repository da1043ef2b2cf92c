"""The REST API: one contract for every list and error, and what each resource can do."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.urls import reverse
from drf_spectacular.validation import validate_schema
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.jobs.runner import job_run
from dashboard.models import AuditEntry, Job, Model, Upload, Version
from dashboard.servers.services import server_ensure_local
from dashboard.web.rest.schema import whole_schema
from dashboard.web.rest.throttles import UserThrottle
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes, serve
from tests.dashboard.web.test_routes import API

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    server_ensure_local()
    return published(load=True).model


def url(path: str) -> str:
    return f"/api/v1/{path}"


# -- the contract ----------------------------------------------------------------------------------------------------


def test_every_list_comes_in_pages(api: APIClient, model: Model) -> None:
    lists = set()
    for path, pattern in API:
        answer = api.get(path, {"page_size": 1})
        body = answer.json() if answer.status_code == 200 and answer["Content-Type"] == "application/json" else {}
        if "results" in body:
            lists.add(pattern.name)
            assert body.keys() == {"count", "next", "previous", "results"}, path
            assert len(body["results"]) == min(body["count"], 1), path
            assert api.get(path, {"page": 999}).status_code == 404, path
            assert api.get(path, {"page": "x"}).json().keys() == {"error"}, path
    assert lists >= {"api_models", "api_versions", "api_releases", "api_examples", "api_jobs", "api_tokens"}


@pytest.mark.parametrize(
    ("path", "body", "unknown"),
    [
        ("models/relu/retention", {"cuont": 3}, "cuont"),
        ("uploads", {"model_name": "new", "files": [{"path": "model.onnx", "size": 1, "sha": "0"}]}, "sha"),
    ],
)
def test_a_field_that_is_not_there_is_refused(
    api: APIClient, model: Model, path: str, body: dict[str, Any], unknown: str
) -> None:
    """A misspelt one would take what it means away, and say that all went well."""
    uploads = Upload.objects.count()
    answer = (api.put if "retention" in path else api.post)(url(path), body, format="json")
    assert answer.status_code == 400
    assert f"{unknown}: There is no such field" in answer.json()["error"]
    assert Upload.objects.count() == uploads


@pytest.mark.parametrize(
    "path",
    [
        "models/nope",
        "models/nope/versions",
        "models/nope/config",
        "models/relu/versions/9",
        "models/relu/versions/99999999999999999999",
        "uploads/00000000-0000-0000-0000-000000000000",
        "jobs/99",
        "jobs/99999999999999999999",
        "servers/nope",
        "servers/nope/events",
    ],
)
def test_what_is_not_there_is_a_404_with_a_sentence(api: APIClient, model: Model, path: str) -> None:
    answer = api.get(url(path))
    assert answer.status_code == 404
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "uploads", {}),
        ("post", "uploads", {"model_name": "x", "files": []}),
        ("post", "uploads", {"model_name": "x", "files": [{"path": "../a", "size": 1}]}),
        ("post", "uploads", {"model_name": "x", "files": [{"path": "a", "size": "many"}]}),
        ("post", "uploads", ["not", "an", "object"]),
        ("post", "tokens", {"name": "x", "rights": ["fly"]}),
        ("put", "models/relu/config", {"text": 3.5}),
        ("put", "models/relu/config", {"text": "nonsense: 1"}),
        ("put", "models/relu/config", {}),
        ("post", "models/relu/config/preview", {"fields": "x"}),
        ("put", "models/relu/aliases", {"aliases": {"champion": "two"}}),
        ("patch", "models/relu", {"tags": "x"}),
        ("patch", "models/relu", {"tags": ["x" * 100]}),
        ("patch", "models/relu/versions/1", {}),
        ("delete", "models/relu", None),
        ("get", "metrics?start=x", None),
        ("get", "metrics?start=5&end=4", None),
        ("get", "metrics?start=nan", None),
    ],
)
def test_a_clients_mistake_is_a_400_with_a_sentence(
    api: APIClient, model: Model, method: str, path: str, body: Any
) -> None:
    answer = getattr(api, method)(url(path), body, format="json")
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]


@pytest.mark.parametrize("path", ["jobs/relu", "nothing", "uploads/relu", "models/a/b/c"])
def test_an_address_that_leads_nowhere_is_a_404_in_json(api: APIClient, path: str) -> None:
    answer = api.get(url(path))
    assert (answer.status_code, answer.json()) == (404, {"error": "there is nothing at this address"})


def test_malformed_json_is_a_400_and_another_media_type_a_415(api: APIClient) -> None:
    answer = api.post(url("uploads"), b"{", content_type="application/json")
    assert (answer.status_code, "is not JSON" in answer.json()["error"]) == (400, True)
    for path, body, said in (
        ("uploads", "[]", "Expected an object with model_name, files"),
        ("models/relu/rollouts", '{"candidate": 1e999}', "the number 1e999 is too large"),
    ):
        answer = api.post(url(path), body, content_type="application/json")
        assert (answer.status_code, said in answer.json()["error"]) == (400, True), answer.json()
    answer = api.post(url("uploads"), b"a=1", content_type="application/x-www-form-urlencoded")
    assert (answer.status_code, "Content-Type: application/json" in answer.json()["error"]) == (415, True)
    assert api.put(url("models")).status_code == 405


@pytest.mark.parametrize(
    "body", ['{"aliases": {"%s": 1}}', '{"aliases": {}, "%s": [[1]]}', '{"aliases": {"a": ["%s"]}}']
)
def test_half_of_a_surrogate_pair_is_no_text_wherever_it_stands(api: APIClient, model: Model, body: str) -> None:
    answer = api.put(url("models/relu/aliases"), body % "\\uD800", content_type="application/json")
    assert (answer.status_code, "surrogate" in answer.json()["error"]) == (400, True)
    assert (
        api.put(url("models/relu/aliases"), body % "\\uD83D\\uDE00", content_type="application/json").status_code == 400
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"\xff", "not UTF-8"), (b"9" * 5000, "too many digits"), (b"[NaN]", "NaN"), (b"[" * 100_000, "too deeply")],
)
def test_a_body_that_is_no_json_is_refused_in_our_words(api: APIClient, body: bytes, said: str) -> None:
    answer = api.post(url("uploads"), body, content_type="application/json")
    assert (answer.status_code, said in answer.json()["error"]) == (400, True)


def test_a_sentence_stays_one_however_long_what_was_sent_is(api: APIClient, model: Model) -> None:
    answer = api.put(url("models/relu/aliases"), {"aliases": {"a" * 50_000: "x"}}, format="json")
    assert answer.status_code == 400
    assert len(answer.json()["error"]) < 600


def test_there_is_a_schema_of_every_route(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "schema.yaml"
    call_command("spectacular", file=str(path), fail_on_warn=True)
    schema = yaml.safe_load(path.read_text())
    validate_schema(schema)
    assert len(schema["paths"]) > 35
    assert schema["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}


def test_the_documentation_page_is_whole_without_another_site(api: APIClient, actor: Actor) -> None:
    api.force_login(actor.user)
    page = api.get(reverse("api_docs"), HTTP_ACCEPT="text/html")
    text = page.content.decode()
    assert page.status_code == 200
    assert "http://" not in text.replace("http://testserver/api/v1/", "")
    assert "https://" not in text
    assert "<style" not in text
    assert f'href="{reverse("overview")}"' in text
    assert "servers&#x27; <code>outages</code>" in text
    assert "`" not in re.sub(r'data-row="[^"]*"', "", text.split('id="operations"')[1])
    for path, item in whole_schema()["paths"].items():
        assert path in text
        for operation in item.values():
            assert operation["operationId"] in text


def test_every_operation_says_what_it_does_and_which_right_it_takes() -> None:
    operations = [
        (path, method, said) for path, item in whole_schema()["paths"].items() for method, said in item.items()
    ]
    assert len(operations) > 45
    for path, method, said in operations:
        where = f"{method} {path}"
        assert 10 < len(said["summary"]) <= 120, where
        assert "HasRight" not in said["summary"] + said.get("description", ""), where
        assert said["x-right"], where


def test_a_client_that_asks_too_often_has_to_wait(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr(UserThrottle, "rate", "2/min", raising=False)
    codes = [api.get(url("me")).status_code for _ in range(3)]
    answer = api.get(url("me"))
    cache.clear()
    assert codes == [200, 200, 429]
    assert "available in" in answer.json()["error"]
    assert int(answer["Retry-After"]) <= 60


# -- models and versions ---------------------------------------------------------------------------------------------


def test_a_model_shows_what_it_serves(api: APIClient, model: Model) -> None:
    body = api.get(url("models")).json()["results"][0]
    assert (body["name"], body["state"], body["wanted_versions"], body["wanted_by"]) == ("relu", "loading", [1], "olga")
    assert (body["wanted_release"], body["serving_release"], body["live_versions"]) == (1, None, [])
    assert api.get(url("models/relu")).json() == body
    assert api.get(url("models"), {"search": "zzz"}).json()["count"] == 0
    assert api.get(url("models"), {"tag": "prod"}).json()["count"] == 0
    api.patch(url("models/relu"), {"tags": ["prod"], "description": "Positive thinking"})
    assert api.get(url("models"), {"tag": "prod"}).json()["results"][0]["description"] == "Positive thinking"


def test_versions_are_made_live_taken_back_archived_and_restored(
    api: APIClient, model: Model, published: Callable[..., Version]
) -> None:
    serve(model)
    published(load=False)
    assert [row["number"] for row in api.get(url("models/relu/versions")).json()["results"]] == [2, 1]
    assert api.post(url("models/relu/versions/2/make_live")).status_code == 200
    assert api.get(url("models/relu")).json()["wanted_versions"] == [2]
    serve(model)
    assert api.post(url("models/relu/go_back")).json()["wanted_versions"] == [1]
    assert api.post(url("models/relu/versions/2/make_live")).status_code == 200
    for number in (1, 2):  # the way back, and what is wanted
        assert api.post(url(f"models/relu/versions/{number}/archive")).status_code == 409
    serve(model)
    only_two = f"{CONFIG}version_policy {{ specific {{ versions: [ 2 ] }} }}"
    assert api.put(url("models/relu/config"), {"text": f"{only_two} # alone"}).status_code == 200
    newest = api.get(url("models/relu/releases")).json()["results"][0]
    assert newest["number"] == 5  # clients meet the same, so version 1 stays the way back
    assert api.post(url("models/relu/versions/1/archive")).status_code == 409
    assert api.put(url("models/relu/config"), {"text": f"{only_two} dynamic_batching {{ }}"}).status_code == 200
    serve(model)
    assert api.post(url("models/relu/versions/1/archive")).json()["state"] == "archived"
    assert api.post(url("models/relu/versions/1/restore")).json()["state"] == "published"
    assert api.patch(url("models/relu/versions/1"), {"note": "old"}).json()["note"] == "old"
    rows = api.get(url("models/relu/releases")).json()["results"]
    assert [(row["number"], row["kind"], row["versions"], row["state"]) for row in rows] == [
        (7, "configure", [2], "serving"),
        (5, "promote", [2], "served"),
        (4, "go_back", [1], "skipped"),
        (3, "promote", [2], "served"),
        (1, "publish", [1], "served"),  # publishing only and a comment, 2 and 6, are further texts
    ]
    assert rows[2]["returns_to"] == 1


def test_a_model_is_unloaded_loaded_and_deleted(api: APIClient, model: Model) -> None:
    assert api.delete(url("models/relu?confirm=relu")).status_code == 409
    assert api.post(url("models/relu/unload")).json()["state"] == "unloaded"
    assert api.post(url("models/relu/load")).json()["state"] == "loading"
    api.post(url("models/relu/unload"))
    assert api.delete(url("models/relu?confirm=relu")).status_code == 204
    assert api.get(url("models/relu")).status_code == 404


# -- configuration ---------------------------------------------------------------------------------------------------


def test_the_configuration_is_read_previewed_applied_and_taken_back(api: APIClient, model: Model) -> None:
    config = api.get(url("models/relu/config")).json()
    assert (config["release"], config["text"], config["drift"]) == (1, CONFIG, [])
    assert config["fields"]["max_batch_size"] == 8
    preview = api.post(url("models/relu/config/preview"), {"fields": {"batching": True}}).json()
    assert (preview["valid"], preview["effect"], preview["fields"]["batching"]) == (True, "in_place", True)
    serve(model)
    applied = api.put(url("models/relu/config"), {"text": preview["text"], "base_release": 1})
    assert applied.json()["release"] == 2
    stale = api.put(url("models/relu/config"), {"text": CONFIG, "base_release": 1})
    assert (stale.status_code, "2 is the current one" in stale.json()["error"]) == (409, True)
    assert (stale.json()["base_text"], stale.json()["current_text"]) == (CONFIG, preview["text"])
    before = api.get(url("models/relu/releases/1/go_back")).json()
    assert (before["works"], "-dynamic_batching" in before["diff"], before["effect"]) == (True, True, "in_place")
    made = api.post(url("models/relu/releases/1/go_back"))
    assert (made.status_code, made.json()["number"], Document.read(made.json()["text"]).text) == (201, 3, CONFIG)
    assert api.post(url("models/relu/releases/2/go_back")).status_code == 409
    assert "never live" in api.get(url("models/relu/releases/2/go_back")).json()["refusals"][0]
    assert api.get(url("models/relu/releases/9")).status_code == 404
    assert api.post(url("models/relu/releases/9/go_back")).status_code == 404


def test_problems_of_a_configuration_come_with_their_places(api: APIClient, model: Model) -> None:
    answer = api.put(url("models/relu/config"), {"text": CONFIG.replace("batch_size: 8", "batch_size: -8")})
    assert answer.status_code == 400
    assert answer.json()["problems"][0]["line"] == 3
    assert answer.json()["problems"][0]["field"] == "max_batch_size"


def test_drift_is_adopted_or_written_over(api: APIClient, model: Model, data_folder: Path) -> None:
    path = data_folder / "models" / "relu" / "config.pbtxt"
    path.write_text(CONFIG + "# one\n")
    assert api.put(url("models/relu/config"), {"text": CONFIG + "# two\n"}).status_code == 409
    assert api.post(url("models/relu/config/overwrite")).json()["text"] == CONFIG
    assert path.read_text() == Document.read(CONFIG).stamped(1)
    path.write_text(CONFIG + "# one\n")
    assert api.post(url("models/relu/config/adopt")).json()["text"] == CONFIG + "# one\n"


def test_a_folder_copied_into_the_repository_is_adopted(api: APIClient, data_folder: Path) -> None:
    folder = data_folder / "models" / "copied"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(relu_bytes())
    assert api.get(url("repository/unmanaged")).json() == {"names": ["copied"]}
    adopted = api.post(url("models/copied/adopt"))
    assert (adopted.status_code, adopted.json()["state"], adopted.json()["latest_number"]) == (201, "unloaded", 1)
    assert api.get(url("repository/unmanaged")).json() == {"names": []}
    assert api.post(url("models/copied/adopt")).status_code == 409
    assert api.post(url("models/nope/adopt")).status_code == 404


# -- uploads ---------------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_version_over_the_api_alone(api: APIClient, unqueued: list[int]) -> None:
    content = relu_bytes()
    file = {"path": "m.onnx", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    made = api.post(url("uploads"), {"model_name": "relu", "files": [file]})
    assert made.status_code == 201
    assert made.json()["chunk_bytes"] == 8 << 20
    upload = made.json()["id"]
    place = url(f"uploads/{upload}/files/0")
    half = len(content) // 2
    first = put(api, f"{place}?offset=0", content[:half], HTTP_X_SHA256=hashlib.sha256(content[:half]).hexdigest())
    assert (first.json(), first["Upload-Offset"]) == ({"received": half, "size": len(content)}, str(half))
    assert api.head(place)["Upload-Offset"] == str(half)
    wrong = put(api, f"{place}?offset=0", content)
    assert (wrong.status_code, wrong.json()["received"]) == (409, half)
    early = api.post(url(f"uploads/{upload}/complete"))
    assert early.status_code == 409
    assert put(api, f"{place}?offset={half}", content[half:]).status_code == 200
    done = api.post(url(f"uploads/{upload}/complete"))
    assert (done.status_code, done.json()["state"]) == (202, "received")
    job_run(job_id=done.json()["job"])
    assert api.get(url(f"jobs/{done.json()['job']}")).json()["state"] == "succeeded"
    assert api.get(url(f"uploads/{upload}")).json()["proposal"]["format"] == "onnx"
    version = api.post(url(f"uploads/{upload}/publish"), {"note": "by API", "make_live": True})
    assert (version.status_code, version.json()["number"], version.json()["note"]) == (201, 1, "by API")
    assert api.get(url("models/relu")).json()["wanted_versions"] == [1]


def put(api: APIClient, path: str, content: bytes, **headers: str) -> Any:
    return api.put(path, content, content_type="application/octet-stream", **headers)


@pytest.mark.parametrize("query", ["", "?offset=", "?offset=-1", "?offset=x", "?offset=1e3", "?offset=" + "9" * 30])
def test_a_chunk_without_a_sensible_offset_is_refused(
    api: APIClient, received: Callable[..., Upload], query: str
) -> None:
    upload = received({"m.onnx": b""})
    assert put(api, url(f"uploads/{upload.pk}/files/0{query}"), b"x").status_code == 400
    assert put(api, url(f"uploads/{upload.pk}/files/7?offset=0"), b"x").status_code == 404


def test_a_chunk_over_the_limit_is_a_413(api: APIClient, received: Callable[..., Upload], settings: Any) -> None:
    settings.UPLOAD_CHUNK_BYTES = 10
    upload = received({"m.onnx": b""})
    assert put(api, url(f"uploads/{upload.pk}/files/0?offset=0"), b"x" * 11).status_code == 413


def test_a_full_disk_is_a_507(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repository.files.storage.disk_usage", lambda folder: (1 << 40, 1 << 40, 0))
    answer = api.post(url("uploads"), {"model_name": "relu", "files": [{"path": "m.onnx", "size": 1 << 20}]})
    assert (answer.status_code, "does not fit" in answer.json()["error"]) == (507, True)


def test_an_upload_can_be_cancelled(api: APIClient, received: Callable[..., Upload]) -> None:
    upload = received({"m.onnx": b"x"})
    assert api.delete(url(f"uploads/{upload.pk}")).status_code == 204
    assert api.get(url(f"uploads/{upload.pk}")).json()["state"] == "cancelled"
    assert api.get(url("uploads")).json()["count"] == 0


def test_code_is_not_published_with_a_token_that_may_not(
    actor: Actor, received: Callable[..., Upload], unqueued: list[int]
) -> None:
    from dashboard.accounts.tokens import token_create

    upload = as_inspected(received({"m.onnx": relu_bytes()}), executes_code=True)
    _, secret = token_create(user=actor.user, actor=actor, name="ci", rights=["read", "write"])
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    answer = client.post(url(f"uploads/{upload.pk}/publish"), {})
    assert (answer.status_code, "run code" in answer.json()["error"]) == (403, True)


# -- the rest --------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_and_cancelled(api: APIClient, received: Callable[..., Upload]) -> None:
    api.post(url(f"uploads/{received({'m.onnx': relu_bytes()}).pk}/complete"))
    (job,) = api.get(url("jobs"), {"state": "queued", "kind": "inspect"}).json()["results"]
    assert (job["title"], job["created_by"]) == ("Inspect the upload for relu", "olga")
    assert api.post(url(f"jobs/{job['id']}/cancel")).json()["state"] == "cancelled"
    assert api.post(url(f"jobs/{job['id']}/cancel")).status_code == 409
    assert Job.objects.get().cancel_requested


def test_servers_are_shown_and_restarted_by_administrators(
    api: APIClient, model: Model, person: Callable[..., Any]
) -> None:
    (server,) = api.get(url("servers")).json()["results"]
    assert (server["name"], server["bundled"], server["state"]["state"]) == ("local", True, "stopped")
    assert api.post(url("servers/local/restart")).status_code == 403
    api.force_authenticate(person(name="root", is_superuser=True))
    assert api.post(url("servers/local/restart")).status_code == 202
    assert AuditEntry.objects.first().action == "server.restart"
    assert "control" not in str(server)


def test_metrics_are_served_for_a_range(api: APIClient, model: Model) -> None:
    body = api.get(url("metrics"), {"model": "relu"}).json()
    assert {"times", "series", "step"} <= body.keys()
    assert body["outages"] == []
    assert "versions" not in body
    assert api.get(url("metrics"), {"model": "relu", "each": "true"}).json()["versions"] == {}


def test_tokens_are_made_shown_once_and_revoked(api: APIClient) -> None:
    made = api.post(url("tokens"), {"name": "ci", "rights": ["read", "infer"], "model_names": ["relu"]})
    assert made.status_code == 201
    secret = made.json()["token"]
    assert secret not in api.get(url("tokens")).content.decode()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.get(url("me")).json() == {"username": "olga", "rights": ["view", "infer"], "token": "ci"}
    assert client.post(url("models/other/infer"), {}).status_code == 403
    assert api.delete(url(f"tokens/{made.json()['id']}")).status_code == 204
    assert client.get(url("me")).status_code == 401


def test_the_audit_trail_is_filtered(api: APIClient, model: Model) -> None:
    assert api.get(url("audit"), {"model": "relu", "action": "version.publish", "actor": "olga"}).json()["count"] == 1
    assert api.get(url("audit"), {"model": "other"}).json()["count"] == 0


def test_accounts_are_made_and_changed_by_administrators(api: APIClient, person: Callable[..., Any]) -> None:
    assert api.get(url("accounts")).status_code == 403
    api.force_authenticate(person(name="root", is_superuser=True))
    given = {"username": "ann", "password": "correct horse battery", "permissions": ["operate"]}
    made = api.post(url("accounts"), given)
    assert (made.status_code, made.json()["permissions"]) == (201, ["operate"])
    assert "password" not in made.json()
    changed = api.patch(url(f"accounts/{made.json()['id']}"), {"is_active": False, "permissions": []})
    assert (changed.json()["is_active"], changed.json()["permissions"]) == (False, [])
    assert api.patch(url("accounts/999"), {}).status_code == 404


def test_inference_without_a_server_is_a_503_with_a_sentence(api: APIClient, model: Model, settings: Any) -> None:
    server = server_ensure_local()
    server.http_url = "http://127.0.0.1:9"
    server.save()
    answer = api.post(url("models/relu/infer"), b"{}", content_type="application/json")
    assert (answer.status_code, "does not answer" in answer.json()["error"]) == (503, True)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b'"\\ud800"', b"\xff", b"NaN", b"[]", b""]
)
def test_a_body_that_no_client_would_send_is_refused_as_the_clients_mistake(api: APIClient, body: bytes) -> None:
    for path in ("uploads", "tokens"):
        answer = api.post(f"/api/v1/{path}", body, content_type="application/json")
        assert (answer.status_code, "error" in answer.json()) == (400, True), path
