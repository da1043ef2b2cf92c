"""The installation as text: exported, applied to an empty installation, exported again."""

import io
import re
import tarfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from dashboard import models as tables
from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import account_update
from dashboard.accounts.tokens import auth_file_write, token_create
from dashboard.alerts.channels import channel_create, rule_create
from dashboard.alerts.switches import kind_switch
from dashboard.alerts.table import kind_of
from dashboard.catalog.services import model_describe
from dashboard.deployments.policies import policy_set
from dashboard.examples.services import example_create
from dashboard.fleet.services import environment_create, server_add, server_new, server_place, wanted_set
from dashboard.measurements.services import budget_set
from dashboard.models import (
    AlertChannel,
    AlertOff,
    AlertRule,
    ApiToken,
    AuditEntry,
    Capture,
    DeploymentPolicy,
    Model,
    Objective,
    Quota,
    Server,
    ServerEnvironment,
    Upload,
    Version,
    WantedRelease,
)
from dashboard.models.deployment import Freeze
from dashboard.objectives.services import objective_set
from dashboard.releases.storage import managed_repository
from dashboard.truth.services import metric_set
from dashboard.usage.services import quota_set
from dashboard.versions.retention import retention_set
from dashboard.versions.services import version_annotate

pytestmark = pytest.mark.django_db
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
    staging = environment_create(name="staging", actor=root, control_key="of staging", http_port=9000)
    server_add(server=server_new(environment=staging, name="east", address="http://10.0.0.5:8000"), actor=root)
    wanted_set(environment=staging, model=model, actor=root)
    eu = environment_create(name="eu", actor=root, kubernetes_service="prod/triton", kubernetes_token="of the account")
    server_place(server=Server.objects.get(name="east"), zone="b", actor=root)
    freeze: Freeze = {"days": [4], "start": "16:00", "end": "24:00"}
    policy_set(environment=eu, actor=root, source=staging, approval=True, freezes=[freeze])
    return model


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*arguments: object) -> str:
    out = io.StringIO()
    call_command(*map(str, arguments), stdout=out)
    return out.getvalue()


def refusal(*arguments: object) -> str:
    """Return the sentence with which a command ends."""
    with pytest.raises(CommandError) as raised:
        run(*arguments)
    return str(raised.value)


def edit(folder: Path, path: str, before: str, after: str) -> None:
    content = (folder / path).read_text()
    assert before in content
    (folder / path).write_text(content.replace(before, after))


@pytest.fixture
def text(whole: Model, tmp_path: Path) -> Path:
    run("export", tmp_path / "text")
    return tmp_path / "text"


def emptied() -> None:
    """Forget every row but the administrator's account; the weights stay in the repository."""
    ServerEnvironment.objects.exclude(name="production").delete()
    for table in (Model, ApiToken, Quota, AlertChannel, AlertRule, AlertOff, Upload):
        table.objects.all().delete()  # type: ignore[attr-defined]
    User.objects.exclude(username="root").delete()
    Group.objects.exclude(name="viewers").delete()
    auth_file_write()


def test_a_text_makes_an_empty_installation_the_same_again(whole: Model, tmp_path: Path) -> None:
    text, again, secrets = tmp_path / "text", tmp_path / "again", tmp_path / "secrets"
    run("export", text)
    emptied()
    run("apply", text, "--as", "root", "--secrets", secrets)
    run("export", again)
    assert files(again) == files(text)
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert [line.partition(":")[0] for line in secrets.read_text().splitlines()] == [
        "password of anna",
        "password of olga",
        "token anna",
        "key of the signatures of channel hook",
    ]
    assert WantedRelease.objects.get().environment.servers.get(zone="b").name == "east"
    policy = DeploymentPolicy.objects.get(environment__name="eu", approval=True)
    assert (str(policy.source), policy.freezes) == ("staging", [{"days": [4], "start": "16:00", "end": "24:00"}])
    exported = "".join(path.read_text() for path in text.rglob("*") if path.is_file())
    assert [word for word in ("of staging", "of the account") if word in exported] == []
    AuditEntry.objects.all().delete()
    assert "Nothing to change" in run("apply", text, "--as", "root", "--prune")
    assert not AuditEntry.objects.exists()


def test_a_diff_shows_the_change_and_changes_nothing(whole: Model, text: Path) -> None:
    edit(text, "models/relu/policies.yaml", "percent: 99.9", "percent: 99.5")
    edit(text, "models/relu/config.pbtxt", "max_batch_size: 8", "max_batch_size: 16")
    edit(text, "people.yaml", "groups: [vision]", "groups: [vision, sound]")
    count = AuditEntry.objects.count()
    shown = run("apply", text, "--diff")
    for line in ("-  percent: 99.9", "+  percent: 99.5", "+max_batch_size: 16", "+  groups: [sound, vision]"):
        assert line in shown.splitlines()
    assert shown.endswith("3 changes.\n")
    assert (AuditEntry.objects.count(), Objective.objects.get().percent) == (count, 99.9)
    assert "3 changes" in run("apply", text, "--as", "root")
    assert Objective.objects.get().percent == 99.5
    assert "max_batch_size: 16" in managed_repository().config_path("relu").read_text()
    written = AuditEntry.objects.order_by("pk")[count:].values_list("action", "part", "actor_name")
    acts = [("account.update", True), ("config.apply", True), ("objective.set", True), ("text.apply", False)]
    assert list(written) == [(action, part, "root") for action, part in acts]


def test_a_form_of_ones_own_and_files_of_ones_own_are_no_change(whole: Model, text: Path) -> None:
    edit(
        text,
        "models/relu/policies.yaml",
        "objective:",
        "# agreed with the team\nbudget: {per_second: 100, p99_ms: 10}\nobjective:",
    )
    edit(text, "models/relu/policies.yaml", "budget:\n  p99_ms: 10.0\n  per_second: 100.0\n", "")
    (text / "README.md").write_text("Ours.")
    assert "Nothing to change" in run("apply", text, "--as", "root", "--prune")
    run("export", text)
    assert (text / "README.md").exists()
    assert "# agreed" not in (text / "models/relu/policies.yaml").read_text()


def test_no_secret_is_text_and_each_stays(whole: Model, root: Actor, tmp_path: Path) -> None:
    slack, _ = channel_create(actor=root, name="chat", kind="slack", address="https://hooks.slack.invalid/T0/B0/key")
    channel_create(actor=root, name="pager", kind="pagerduty", secret="R0UTING")
    run("export", tmp_path / "text")
    content = b"".join(files(tmp_path / "text").values()).decode()
    token, hook = ApiToken.objects.get(), AlertChannel.objects.get(name="hook")
    assert root.user is not None
    for secret in (token.hash, token.prefix, hook.secret, "R0UTING", "hooks.slack", root.user.password):
        assert secret not in content
    edit(tmp_path / "text", "alert_channels.yaml", "kind: slack", "kind: slack\n  enabled: false")
    run("apply", tmp_path / "text", "--as", "root")
    before = slack.address
    slack.refresh_from_db()
    assert (slack.enabled, slack.address) == (False, before)


def test_what_is_made_with_a_secret_needs_a_file_for_it(whole: Model, text: Path, tmp_path: Path) -> None:
    edit(text, "people.yaml", "root:", "bert: {permissions: [operate]}\nroot:")
    assert "person 'bert'" in refusal("apply", text, "--as", "root")
    assert not User.objects.filter(username="bert").exists()
    taken = tmp_path / "taken"
    taken.touch()
    assert "is there already" in refusal("apply", text, "--as", "root", "--secrets", taken)
    run("apply", text, "--as", "root", "--secrets", tmp_path / "secrets")
    password = (tmp_path / "secrets").read_text().removeprefix("password of bert: ").strip()
    assert User.objects.get(username="bert").check_password(password)


def test_the_rights_are_those_of_a_page(whole: Model, text: Path, person: Callable[..., Any]) -> None:
    person("only_look", name="vera")
    run("export", text)
    edit(text, "models/relu/model.yaml", "tags: [vision, 'no']", "tags: [wide]")
    assert "no permission to load, unload" in refusal("apply", text, "--as", "vera")
    assert "no active account" in refusal("apply", text, "--as", "nobody")
    assert "--as NAME" in refusal("apply", text)
    edit(text, "alerts_off.yaml", "[crashes]", "[]")
    edit(text, "quotas.yaml", "1000", "2000")
    assert "no permission to administer" in refusal("apply", text, "--as", "anna")
    assert Model.objects.get(name="relu").tags == ["vision", "no"]
    edit(text, "quotas.yaml", "2000", "1000")
    run("apply", text, "--as", "anna")
    assert Model.objects.get(name="relu").tags == ["wide"]


def test_missing_weights_are_named_and_nothing_or_the_rest_is_applied(whole: Model, text: Path, tmp_path: Path) -> None:
    repository = managed_repository()
    Model.objects.all().delete()
    (repository.version_dir("relu", 1) / "model.onnx").write_bytes(b"others")
    repository.model_dir("wide").rename(tmp_path / "away")
    said = refusal("apply", text, "--as", "root").splitlines()
    assert (
        said[0]
        == "In models/wide/model.yaml, line 1: the weights are missing: copy the folder 'wide' into the repository first."
    )
    assert said[1].startswith("In models/relu/versions.yaml, line 1: the weights are others")
    assert said[2:] == ["Nothing was applied."]
    assert not Model.objects.exists()
    (tmp_path / "away").rename(repository.model_dir("wide"))
    said = refusal("apply", text, "--as", "root", "--partial")
    assert "the weights are others" in said
    assert "wide" in Model.objects.values_list("name", flat=True)
    assert not Model.objects.filter(name="relu").exists()


def test_what_the_folder_lacks_is_removed_only_when_asked_for(whole: Model, text: Path, root: Actor) -> None:
    (text / "alert_rules.yaml").write_text("{}")
    (text / "tokens.yaml").write_text("")
    edit(text, "quotas.yaml", "'token anna: ci':\n  rows_per_day: 5\n", "")
    edit(text, "people.yaml", "olga:\n  permissions: [operate, upload_code, upload_data]\n", "")
    for path in (text / "models/wide").iterdir():
        path.unlink()
    (text / "models/wide").rmdir()
    shown = run("apply", text, "--as", "root")
    for entry in ("own alert 'slow'", "person 'olga'", "model 'wide'", "token "):
        assert f"removed only with --prune: {entry}" in shown
    assert "Nothing to change" in shown
    assert "it is loaded; unload it" in refusal("apply", text, "--as", "root", "--prune")
    Model.objects.filter(name="wide").update(desired_state="unloaded")
    run("apply", text, "--as", "root", "--prune")
    assert list(Model.objects.values_list("name", flat=True)) == ["relu"]
    assert not managed_repository().has_model("wide")
    assert (ApiToken.objects.count(), User.objects.get(username="olga").is_active) == (0, False)
    assert "Nothing to change" in run("apply", text, "--as", "root", "--prune")


WRONG = [
    (
        "people.yaml",
        "root: {administrator: true}\nanna: {permission: [operate]}",
        "people.yaml, line 2, anna: permission: there",
    ),
    ("people.yaml", "root: [", "people.yaml, line 2: this is no YAML"),
    ("people.yaml", "a: &b {groups: [x]}\nc: *b", "aliases (such as *name) are not read"),
    ("people.yaml", "anna: {}\nanna: {}", "people.yaml, line 2, anna: it stands there twice"),
    ("people.yaml", "bert: {administrator: true}", "'manage.py createsuperuser'"),
    (
        "quotas.yaml",
        "person anna: {rows_per_day: many}",
        "quotas.yaml, line 1, person anna: rows_per_day: expected a whole number",
    ),
    ("quotas.yaml", "anna: {rows_per_day: 1}", "expected the name of an entry as 'person NAME'"),
    ("tokens.yaml", "- {person: anna, name: ci}", "tokens.yaml, line 1: 'rights' is missing"),
    ("tokens.yaml", "- {person: anna, name: x, rights: [infer], expires: 2001-01-01}", "expected a moment"),
    ("alerts_off.yaml", "[crash]", "alerts_off.yaml, line 1: there is no default alert 'crash'"),
    (
        "models/relu/config.pbtxt",
        'backend: "onnxruntime"\nmax_batch_size: many\n',
        "models/relu/config.pbtxt: the configuration is not valid: line 2, column",
    ),
    (
        "models/relu/policies.yaml",
        "labels: {kind: own, output: y, expression: label}\nobjective:\n  percent: 10",
        "models/relu/policies.yaml, line 3, objective: percent: expected 50",
    ),
    ("models/relu/polices.yaml", "{}", "he file models/relu/polices.yaml is none of a model"),
    ("models/relu/examples.yaml", "a:\n  request: {inputs: 3}", "models/relu/examples.yaml, line 1, a: "),
    ("models/new/config.pbtxt", "", "there is no such model, and its folder has no model.yaml"),
    ("slipway.yaml", "form: 2", "expected 'form: 1'"),
    ("slipway.yaml", "form: 1\nunfinished: true", "was broken off"),
]


def test_a_mistake_is_one_sentence_with_file_and_line(whole: Model, text: Path) -> None:
    count = AuditEntry.objects.count()
    for path, content, said in WRONG:
        file = text / path
        before = file.read_bytes() if file.exists() else None
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        sentence = refusal("apply", text, "--as", "root", "--secrets", text.parent / "secrets")
        assert said in sentence
        assert "\n" not in sentence
        file.unlink()
        if before is not None:
            file.write_bytes(before)
        elif not any(file.parent.iterdir()):
            file.parent.rmdir()
    assert AuditEntry.objects.count() == count


def test_a_model_is_changed_whole_or_not_at_all(whole: Model, text: Path) -> None:
    Model.objects.all().delete()
    config = managed_repository().config_path("relu")
    before = config.read_bytes()
    edit(text, "models/relu/policies.yaml", "percent: 99.9", "percent: 10")
    edit(text, "models/wide/model.yaml", "loaded: true", "description: Wide")
    said = refusal("apply", text, "--as", "root", "--partial")
    assert said.startswith(
        "In models/relu/policies.yaml, line 2, objective: percent: expected 50 to 99.999 per cent, got 10.\n"
    )
    assert list(Model.objects.values_list("name", "description")) == [("wide", "Wide")]
    assert config.read_bytes() == before


def test_a_folder_that_is_no_text_is_neither_written_nor_applied(whole: Model, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "people.yaml").write_text("mine")
    assert "has files, but no slipway.yaml" in refusal("export", tmp_path / "home")
    assert (tmp_path / "home" / "people.yaml").read_text() == "mine"
    assert "no text of an installation" in refusal("apply", tmp_path / "home", "--diff")
    assert "There is no folder" in refusal("apply", tmp_path / "nowhere", "--diff")
    run("export", tmp_path / "text")
    (tmp_path / "text" / "tokens.yaml").unlink()
    (tmp_path / "text" / "tokens.yaml").symlink_to(tmp_path / "home" / "people.yaml")
    assert "tokens.yaml: expected a file, not a link" in refusal("apply", tmp_path / "text", "--diff")
    run("export", tmp_path / "text")
    assert "anna" in (tmp_path / "text" / "tokens.yaml").read_text()
    assert (tmp_path / "home" / "people.yaml").read_text() == "mine"


def test_administrators_get_the_same_files_over_rest(whole: Model, text: Path, as_person: Any, root: Actor) -> None:
    client = Client()
    client.force_login(root.user)
    answer = client.get("/api/v1/export")
    with tarfile.open(fileobj=io.BytesIO(answer.getvalue())) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert found == files(text)
    assert as_person("operate").get("/api/v1/export").status_code == 403
    assert Client().get("/api/v1/export").status_code in (401, 403)


def test_what_names_a_capture_needs_the_capture(whole: Model, text: Path) -> None:
    ended = timezone.now() - timedelta(days=1)
    wanted = {"stopped": True, "errors_only": False}
    capture = Capture.objects.create(model=whole, wanted=wanted, ends_at=ended, keep_until=ended + timedelta(days=9))
    monitor = "- {{capture: {}, version: 1, window: 500, alpha: 0.01, threshold: 0.1}}\n"
    gate = "replay_gate: {{capture: {}, most_percent: 1, absolute: 0, relative: 0.01}}\n"
    policies = (text / "models/relu/policies.yaml").read_text()
    for pk, said in ((uuid4(), "the model has no capture"), (capture.pk, "")):
        (text / "models/relu/drift.yaml").write_text(monitor.format(pk))
        (text / "models/relu/policies.yaml").write_text(policies + gate.format(pk))
        if said:
            assert refusal("apply", text, "--as", "root").count(said) == 2
        else:
            run("apply", text, "--as", "root")
    model = Model.objects.get(pk=whole.pk)
    assert (model.replay_gate["capture"], model.drift_monitors.get().window) == (str(capture.pk), 500)
    assert "Nothing to change" in run("apply", text, "--as", "root", "--prune")
    run("export", text)
    assert "Nothing to change" in run("apply", text, "--as", "root", "--prune")
    (text / "models/relu/drift.yaml").write_text("[]")
    run("apply", text, "--as", "root", "--prune")
    assert not model.drift_monitors.exists()


def test_every_table_is_text_or_the_page_says_why_it_is_not() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "text.md").read_text().partition("## What is text, and")[2]
    named = set(
        re.findall(
            r"\b[A-Z][A-Za-z]+\b", "".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| "))
        )
    )
    assert named >= set(tables.__all__)
