"""Each page for a viewer, an operator and an administrator, and in the states that it was designed for."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import URLPattern

from dashboard.access.authorisation import Actor, Right
from dashboard.accounts.tokens import token_create
from dashboard.models import Job, ModelState, ModelSync, Server, ServerEvent, ServerState, Upload, Version
from dashboard.shared.choices import JobState
from tests.dashboard.conftest import CONFIG, relu_bytes, serve, text_of
from tests.dashboard.web.test_routes import OPEN
from tests.dashboard.web.test_routes import PAGES as ROUTES

# Asked with more than an address, or of what only tests of their own make.
NEEDS_MORE = {
    "advised_configuration",
    "alert",
    "batch",
    "capture",
    "deployment",
    "metrics",
    "model_archive",
    "model_existing",
    "model_rollout",
    "replay",
    "replays",
    "replicas",
    "replicas_chart",
    "rollout_chart",
    "rollout_mismatch",
    "rollout_mismatches",
    "upload",
    "activity_at",
}
NO_PAGE = (302, 405)  # at the address of a form, which leads on to its page or takes POST only
PAGES = [(path, pattern) for path, pattern in ROUTES if pattern.name not in OPEN | NEEDS_MORE]


def pages() -> list[tuple[str, URLPattern]]:
    """The pages, of an environment and a job that exist: the database goes on counting after the jobs of earlier tests."""
    there = {"/jobs/1/": f"/jobs/{Job.objects.latest('pk').pk}/", "/environments/local/": "/environments/production/"}
    found = []
    for path, pattern in PAGES:
        begin = next((one for one in there if path.startswith(one)), "")
        found.append((there.get(begin, "") + path.removeprefix(begin), pattern))
    return found


@pytest.mark.parametrize(
    ("permissions", "is_superuser"), [((), False), (("operate", "upload_data"), False), ((), True)]
)
def test_every_page_is_shown(
    relu: Version, as_person: Callable[..., Client], permissions: tuple[str, ...], is_superuser: bool
) -> None:
    client = as_person(*permissions, is_superuser=is_superuser)
    shown = set()
    for path, pattern in pages():
        answer = client.get(path)
        expected = {200, *NO_PAGE} | (set() if pattern.callback.right is Right.VIEW else {403})
        assert answer.status_code in expected, path
        page = answer.content.decode() if answer.status_code == 200 and not answer.streaming else ""
        if "<html" in page:
            shown.add(pattern.name)
            assert page.count("<h1>") == 1, path
            assert " style=" not in page, f"{path}: inline styles are refused by the content security policy"
            assert not re.search(r"<script(?![^>]*(src=|application/json))", page), f"{path}: so are inline scripts"
    assert shown >= {"overview", "model", "release", "model_playground", "job", "server", "settings"}


def test_every_page_answers_a_script_that_asks_for_its_part(relu: Version, as_person: Callable[..., Client]) -> None:
    administrator = as_person(is_superuser=True)
    for path, _ in pages():
        for part in ("", "?part=nothing"):
            answer = administrator.get(path + part, headers={"HX-Request": "true"})
            assert answer.status_code in {200, *NO_PAGE}, path


def test_a_viewer_is_offered_nothing_that_they_may_not_do(relu: Version, as_person: Callable[..., Client]) -> None:
    viewer = as_person()
    seen = [path for path, pattern in pages() if pattern.callback.right is Right.VIEW]
    page = "".join(answer.content.decode() for path in seen if (answer := viewer.get(path)).status_code == 200)
    for action in ("/unload", "/roll-back", "/archive", "/delete", "/describe", "/restart", "/models/new"):
        assert action not in page, action
    assert viewer.post("/models/relu/unload").status_code == 403
    assert viewer.get("/models/new").status_code == 403


def test_an_operator_is_offered_what_they_may_do(relu: Version, as_person: Callable[..., Client]) -> None:
    page = text_of(as_person("operate", "upload_data"), "/models/relu/")
    assert "/models/relu/unload" in page
    assert "/models/new?model=relu" in page


def test_without_models_the_first_step_is_named(server: Server, as_person: Callable[..., Client]) -> None:
    uploader = as_person("upload_data")
    assert "Upload the first model" in text_of(uploader, "/models/")
    assert "Upload the first model" in text_of(uploader, "/")
    assert "Nothing has changed yet" in text_of(uploader, "/")
    assert "No jobs yet" in text_of(uploader, "/jobs/")
    assert "No tokens" in text_of(uploader, "/settings/")


def test_a_model_that_failed_is_named_first_with_its_reason(
    relu: Version, server: Server, as_person: Callable[..., Client]
) -> None:
    ModelState.objects.update(state="UNAVAILABLE", reason="the file ends too early")
    ModelSync.objects.create(server=server, model=relu.model, error="the file ends too early")
    page = text_of(as_person(), "/")
    assert "Needs attention" in page
    assert "The file ends too early." in page
    assert "favicon-failed" in page
    assert 'data-failing="1"' in page
    assert "Try again" in text_of(as_person("operate"), "/models/relu/")
    for address in ("/models/relu/", "/models/relu/versions", f"/servers/{server.name}/"):
        page = text_of(as_person(), address)
        assert 'data-state="failed"' in page
        assert "Unavailable" not in page, address


def test_a_model_that_fell_back_to_the_cpu_is_ready_and_says_so(
    relu: Version, as_person: Callable[..., Client]
) -> None:
    ModelState.objects.update(reason="the instance group asks for KIND_GPU, but this machine has no CUDA device")
    for address in ("/models/relu/", "/models/relu/versions"):
        page = text_of(as_person(), address)
        assert "The instance group asks for KIND_GPU, but this machine has no CUDA device." in page
        assert "note degraded" in page
        assert "note failed" not in page
    assert "Needs attention" not in text_of(as_person(), "/")


def test_a_model_whose_new_version_failed_says_that_the_old_one_serves(
    relu: Version, server: Server, as_person: Callable[..., Client]
) -> None:
    ModelSync.objects.create(server=server, model=relu.model, error="output y is FP16, expected FP32")
    page = text_of(as_person(), "/models/relu/")
    assert "Output y is FP16, expected FP32. Version 1 keeps serving." in page
    assert 'data-state="degraded"' in page
    assert "1 of 1 model serving" in text_of(as_person(), "/")


def test_a_release_that_serves_in_place_of_the_wanted_one_is_named_once_and_is_one_click_away(
    relu: Version, published: Callable[..., Version], server: Server, as_person: Callable[..., Client]
) -> None:
    serve(relu.model, server)
    published(load=True, make_live=True)
    ModelSync.objects.create(server=server, model=relu.model, error="output y is FP16, expected FP32")
    reported = "Release 2 failed: Output y is FP16, expected FP32. Release 1 keeps serving, with version 1."
    for address in ("/", "/models/relu/"):
        page = text_of(as_person("operate"), address)
        words = re.sub(r"<[^>]*>", "", page)
        assert reported in words
        assert words.count("keeps serving") == 1
        assert 'href="/models/relu/releases/1/#back"' in page
    assert "#back" not in text_of(as_person(), "/")


def test_a_server_that_is_down_says_why_and_what_happens_next(server: Server, as_person: Callable[..., Client]) -> None:
    ServerState.objects.update(state="down", last_reason="the process ended by signal SIGKILL")
    ServerEvent.objects.create(server=server, kind="crashed", message="the process ended by signal SIGKILL")
    page = text_of(as_person(), "/servers/local/")
    assert (
        "The process ended by signal SIGKILL. It is restarted automatically, and every model is loaded again." in page
    )
    assert "Crashed" in page


def test_a_folder_changed_by_hand_is_shown_with_both_ways_out(relu: Version, as_person: Callable[..., Client]) -> None:
    relu.model.drift = ["config.pbtxt was changed."]
    relu.model.save()
    page = text_of(as_person("operate"), "/models/relu/configuration")
    assert "Adopt the change" in page
    assert "Write 1 back" in page


def test_a_refused_configuration_keeps_what_was_typed(relu: Version, as_person: Callable[..., Client]) -> None:
    answer = as_person("operate").post("/models/relu/configuration", {"text": 'name: "relu"\nmax_batchsize: 3'})
    assert answer.status_code == 400
    assert "max_batchsize: 3" in answer.content.decode()
    assert "Nothing was applied" in answer.content.decode()


@pytest.mark.parametrize(
    "form", [{}, {"text": CONFIG, "base_release": "x"}, {"text": CONFIG, "base_release": "9" * 5000}]
)
def test_a_form_that_lost_a_field_changes_no_configuration(
    relu: Version, as_person: Callable[..., Client], form: dict[str, str]
) -> None:
    before = relu.model.releases.count()
    assert as_person("operate").post("/models/relu/configuration", form).status_code in (400, 409)
    assert relu.model.releases.count() == before


def test_a_preview_answers_with_fields_problems_and_effect(relu: Version, as_person: Callable[..., Client]) -> None:
    client = as_person()
    answer = client.post(
        "/models/relu/configuration/preview", {"fields": {"max_batch_size": "4"}}, content_type="application/json"
    )
    assert answer.status_code == 200
    assert answer.json()["fields"]["max_batch_size"] == 4
    assert answer.json()["effect_sentence"]
    assert client.post("/models/relu/configuration/preview", "[]", content_type="application/json").status_code == 400


def test_an_inspected_upload_can_be_published_from_its_page(inspected: Callable[..., Upload], server: Server) -> None:
    upload = inspected(model_name="fresh")
    client = Client()
    client.force_login(upload.user)
    page = text_of(client, f"/uploads/{upload.pk}/")
    assert "Publish version 1" in page
    assert "Nothing is wrong with it" in page
    answer = client.post(
        f"/uploads/{upload.pk}/publish",
        {"text": upload.proposal["config"], "note": "first", "after": "live"},
        follow=True,
    )
    assert answer.status_code == 200, re.search("Nothing was published:[^<]*", answer.content.decode())
    assert "Version 1 is published" in answer.content.decode()


def test_a_file_that_the_present_configuration_does_not_fit_is_not_called_ready_to_publish(
    relu: Version, inspected: Callable[..., Upload]
) -> None:
    upload = inspected({"model.onnx": relu_bytes(output="z")})
    client = Client()
    client.force_login(upload.user)
    page = text_of(client, f"/uploads/{upload.pk}/")
    assert '<span data-publishable="yes" hidden>' in page
    assert '<span data-publishable="no">' in page
    assert "Use the proposed one" in page


def test_publishing_a_wrong_configuration_keeps_what_was_typed(
    inspected: Callable[..., Upload],
) -> None:
    upload = inspected(model_name="fresh")
    client = Client()
    client.force_login(upload.user)
    typed = {"text": "max_batchsize: 3", "note": "a note", "after": "keep"}
    answer = client.post(f"/uploads/{upload.pk}/publish", typed)
    assert answer.status_code == 400
    for text in ("Nothing was published", "max_batchsize: 3", "a note"):
        assert text in answer.content.decode()


def test_an_upload_that_expired_says_so(received: Callable[..., Upload], as_person: Callable[..., Client]) -> None:
    upload = received({"model.onnx": b"abc"})
    Upload.objects.filter(pk=upload.pk).update(state="expired")
    assert "This upload has expired" in text_of(as_person(), f"/uploads/{upload.pk}/")


@pytest.mark.parametrize("state", JobState.values)
def test_a_job_is_shown_in_every_state(db: None, as_person: Callable[..., Client], state: str) -> None:
    job = Job.objects.create(kind="archive", title="Archive relu", state=state, progress=40, step="Reading", error="no")
    page = text_of(as_person(), f"/jobs/{job.pk}/")
    assert f'data-state="{state}"' in page
    assert "Archive relu" in text_of(as_person(), f"/jobs/?state={state}")


def test_a_token_is_shown_once(as_person: Callable[..., Client]) -> None:
    client = as_person()
    made = client.post("/settings/tokens", {"name": "script", "rights": ["read"], "days": "30"})
    secret = re.search(r'id="new-token">([^<]+)<', made.content.decode())
    assert secret is not None
    later = text_of(client, "/settings/")
    assert secret.group(1) not in later
    assert "script" in later


def test_a_person_cannot_give_a_token_rights_that_they_lack(as_person: Callable[..., Client]) -> None:
    answer = as_person().post("/settings/tokens", {"name": "script", "rights": ["admin"], "days": "30"})
    assert answer.status_code == 400
    assert "Choose at least one right" in answer.content.decode()


def test_a_person_revokes_only_their_own_tokens(person: Callable[..., Any], as_person: Callable[..., Client]) -> None:
    other = person(name="other")
    token, _ = token_create(user=other, actor=Actor(user=other), name="theirs", rights=["read"])
    assert as_person().post(f"/settings/tokens/{token.pk}/revoke").status_code == 404


def test_an_unknown_page_and_model_are_not_found(as_person: Callable[..., Client]) -> None:
    client = as_person()
    assert "There is nothing here" in text_of(client, "/nothing", status=404)
    assert "no model named" in text_of(client, "/models/ghost/", status=404)


@pytest.mark.parametrize(
    "target", ["https://elsewhere.example/", "//elsewhere.example", "overview", "1", "a:b", "sign_out"]
)
def test_a_page_of_our_own_alone_is_returned_to(relu: Version, as_person: Callable[..., Client], target: str) -> None:
    answer = as_person("operate").post("/models/relu/load", {"next": target})
    assert answer["Location"] == "/models/relu/"


def test_the_history_of_charts_is_bounded(server: Server, as_person: Callable[..., Client]) -> None:
    client = as_person()
    assert client.get("/metrics?start=1000&end=2000").status_code == 200
    assert client.get("/metrics?start=2000&end=1000").status_code == 400
    assert client.get("/metrics?start=0&end=99999999").status_code == 400
    assert client.get("/metrics?start=then&end=now").status_code == 400


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"username": "no spaces please", "password": "a long first secret"}, "person-name-error"),
        ({"username": "maria", "password": "123"}, "person-password-error"),
        ({"username": "ADMIN-1", "password": "a long first secret"}, "person-name-error"),
    ],
)
def test_the_reason_why_a_person_cannot_be_added_stands_at_the_field_and_the_input_stays(
    as_person: Callable[..., Client], sent: dict[str, str], error: str
) -> None:
    administrator = as_person(is_superuser=True)
    get_user_model().objects.create_user("admin-1")
    answer = administrator.post("/settings/people", {**sent, "permissions": ["operate"]})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert f'id="{error}"' in page
    assert f'name="username" id="person-name" value="{sent["username"]}"' in page
    assert 'name="permissions" value="operate" checked' in page
    assert f'value="{sent["password"]}"' not in page


def test_a_description_that_is_refused_keeps_what_was_typed(
    as_person: Callable[..., Client], published: Callable[..., Version]
) -> None:
    published()
    tags = ", ".join(f"tag{number}" for number in range(200))
    answer = as_person("operate").post("/models/relu/describe", {"description": "Of the harbour", "tags": tags})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert 'id="tags-error"' in page
    assert ">Of the harbour</textarea>" in page
    assert f'value="{tags}"' in page


def test_an_administrator_adds_a_person_and_changes_their_rights(as_person: Callable[..., Client]) -> None:
    administrator = as_person(is_superuser=True)
    new = {"username": "maria", "password": "a long first secret", "permissions": ["operate"]}
    assert "maria can sign in" in administrator.post("/settings/people", new, follow=True).content.decode()
    maria = get_user_model().objects.get(username="maria")
    assert maria.has_perm("dashboard.operate")
    administrator.post(f"/settings/people/{maria.pk}", {"permissions": ["upload_data"], "is_active": "on"})
    maria = get_user_model().objects.get(username="maria")
    assert maria.is_active
    assert not maria.has_perm("dashboard.operate")
    assert maria.has_perm("dashboard.upload_data")
    assert as_person().post("/settings/people", new).status_code == 403
