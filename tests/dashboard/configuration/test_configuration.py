"""Configurations: previewed by text or form, applied, returned to, and never written over by surprise."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import unmanaged_models
from dashboard.configuration.drift import drift_adopt, drift_check, drift_overwrite, model_adopt
from dashboard.configuration.fields import fields_of
from dashboard.configuration.services import config_apply, config_preview
from dashboard.models import AuditEntry, Model, Version
from dashboard.releases.selectors import wanted_versions
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, Outdated
from dashboard.versions.services import release_go_back
from repository.config import model_config
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, relu_bytes, serve

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


def on_disk(data_folder: Path, name: str = "relu") -> Path:
    return data_folder / "models" / name / "config.pbtxt"


# -- preview ---------------------------------------------------------------------------------------------------------


def test_a_preview_of_json_that_is_nested_too_deeply_is_refused(published: Any, actor: Actor, client: Any) -> None:
    published()
    client.force_login(actor.user)
    answer = client.post("/models/relu/configuration/preview", b"[" * 100_000, content_type="application/json")
    assert answer.status_code == 400


def test_a_form_edit_changes_its_lines_and_keeps_the_comments(model: Model) -> None:
    fields = {"batching": True, "preferred_batch_size": "4, 8", "max_queue_delay_microseconds": "100"}
    preview = config_preview(model_name="relu", fields=fields)
    assert preview.valid
    assert preview.document.text.startswith(CONFIG.splitlines()[0])
    assert preview.changed_fields == ["dynamic_batching"]
    assert preview.dropped_comments == []
    assert (preview.effect, preview.fields["preferred_batch_size"]) == ("in_place", [4, 8])
    removed = [line for line in preview.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert removed == []


def test_the_text_and_the_form_say_the_same(model: Model) -> None:
    text = CONFIG + "instance_group [ { count: 3 kind: KIND_GPU gpus: [ 0, 1 ] } ]\nversion_policy { all { } }\n"
    preview = config_preview(model_name="relu", document=Document.read(text))
    assert preview.fields["instance_groups"] == [{"name": "", "count": 3, "kind": "GPU", "gpus": [0, 1]}]
    assert preview.fields["version_policy"] == "all"
    again = config_preview(model_name="relu", base=Document.read(text), fields=preview.fields)
    assert again.document.text == text


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        (CONFIG, "none"),
        ("# another comment\n" + CONFIG, "none"),
        ('name: "relu"\n' + CONFIG, "in_place"),
        (CONFIG + "instance_group [ { count: 2 } ]", "in_place"),
        (CONFIG + 'parameters { key: "slipway.isolation" value { string_value: "\\"process\\"" } }', "reload"),
        (CONFIG + 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }', "reload"),
        (CONFIG + "version_policy { all { } }", "versions"),
        (CONFIG.replace("max_batch_size: 8", "max_batch_size: 4"), "reload"),
    ],
)
def test_the_preview_says_what_applying_will_do(model: Model, text: str, effect: str) -> None:
    preview = config_preview(model_name="relu", document=Document.read(text))
    assert preview.effect == effect
    assert preview.effect_sentence.endswith(".")


def test_a_problem_names_the_field_of_the_form_and_the_line_of_the_text(model: Model) -> None:
    preview = config_preview(
        model_name="relu", document=Document.read(CONFIG + "dynamic_batching {\n  preferred_batch_size: [ 4, 99 ]\n}\n")
    )
    (problem,) = preview.problems
    assert (problem.field, problem.path) == ("preferred_batch_size", "dynamic_batching.preferred_batch_size[1]")
    assert problem.line == CONFIG.count("\n") + 2
    assert not preview.valid


def test_a_text_that_does_not_parse_says_where(model: Model) -> None:
    preview = config_preview(model_name="relu", document=Document.read("max_batch_size: 8\nbanana: 3\n"))
    assert (preview.problems[0].line, preview.valid, preview.fields) == (2, False, {})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_batch_size": "eight"}, "max_batch_size"),
        ({"max_batch_size": 1 << 40}, "max_batch_size"),
        ({"batching": True, "preferred_batch_size": "4, x"}, "preferred_batch_size"),
        ({"inputs": [{"name": "x", "data_type": "FP99"}]}, "inputs[0].data_type"),
        ({"instance_groups": [{"count": 0}]}, "instance_groups[0].count"),
        ({"instance_groups": "none"}, "instance_groups"),
        ({"version_policy": "some"}, "version_policy"),
        ({"nonsense": 1}, "nonsense"),
        ({"batching": True, "preferred_batch_size": [1 << 50]}, ""),
    ],
)
def test_a_form_value_that_cannot_be_understood_is_a_problem_at_its_field(
    model: Model, fields: dict[str, Any], field: str
) -> None:
    preview = config_preview(model_name="relu", fields=fields)
    assert [problem.field for problem in preview.problems] == [field]
    assert preview.document.text == CONFIG


def test_the_form_keeps_what_it_does_not_show() -> None:
    text = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1, 3, 3 ] format: FORMAT_NCHW } ]\n'
    preview = config_preview(
        model_name="new", base=Document.read(text), fields={"inputs": [{"name": "x", "dims": "1 4 4"}]}
    )
    assert "FORMAT_NCHW" in preview.document.text
    assert preview.fields["inputs"][0]["dims"] == [1, 4, 4]


def test_every_field_of_the_form_survives_the_way_there_and_back() -> None:
    text = """
backend: "onnxruntime" max_batch_size: 16
input { name: "a" data_type: TYPE_FP16 dims: [ 6 ] reshape { shape: [ 2, 3 ] } optional: true }
output { name: "b" data_type: TYPE_STRING dims: [ -1 ] label_filename: "labels.txt" }
dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 5 preserve_ordering: true
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 allow_timeout_override: true
    max_queue_size: 9 } }
instance_group { name: "g" count: 2 kind: KIND_CPU }
version_policy { specific { versions: [ 3 ] } }
"""
    fields = fields_of(model_config.parse(text))
    preview = config_preview(model_name="new", base=Document.read(""), fields=fields)
    assert model_config.parse(preview.document.text) == model_config.parse(text)
    assert preview.fields == fields


def test_a_version_that_is_not_there_is_a_warning(model: Model) -> None:
    preview = config_preview(
        model_name="relu", document=Document.read(CONFIG + "version_policy { specific { versions: [ 9 ] } }")
    )
    assert preview.valid
    assert [(problem.severity, problem.message) for problem in preview.problems] == [
        ("warning", "there is no published version 9")
    ]


# -- apply and return ------------------------------------------------------------------------------------------------


def test_applying_writes_the_text_as_it_is_and_keeps_a_release(model: Model, actor: Actor, data_folder: Path) -> None:
    text = CONFIG + "instance_group [ { count: 2 } ]  # two\n"
    generation = Model.objects.get().generation
    release = config_apply(model=model, document=Document.read(text), actor=actor)
    assert on_disk(data_folder).read_text() == Document.read(text).stamped(2) == release.text
    assert (release.number, release.summary, release.created_by_name) == (2, "Changed instance_group", "olga")
    assert Model.objects.get().generation == generation + 1
    entry = AuditEntry.objects.first()
    assert (entry.action, Document.read(entry.before["text"]).text, entry.after["text"]) == (
        "config.apply",
        CONFIG,
        release.text,
    )
    assert drift_check() == []


def test_applying_the_same_text_changes_nothing(model: Model, actor: Actor) -> None:
    entries = AuditEntry.objects.count()
    for same in (CONFIG, Document.read(CONFIG).stamped(1), Document.read(CONFIG).stamped(99)):
        assert config_apply(model=model, document=Document.read(same), actor=actor).number == 1
    assert AuditEntry.objects.count() == entries


def test_a_refused_text_changes_nothing(model: Model, actor: Actor, data_folder: Path) -> None:
    with pytest.raises(Invalid) as error:
        config_apply(model=model, document=Document.read(CONFIG + "max_batch_size: 9"), actor=actor)
    assert "more than once" in error.value.message
    assert on_disk(data_folder).read_text() == Document.read(CONFIG).stamped(1)
    assert model.releases.count() == 1


def test_one_click_returns_to_an_earlier_text(model: Model, actor: Actor, data_folder: Path) -> None:
    first = serve(model)
    config_apply(model=model, document=Document.read(CONFIG + "instance_group [ { count: 2 } ]"), actor=actor)
    release = release_go_back(model=model, release=first, actor=actor)
    assert (release.number, release.summary, release.returns_to) == (3, "Went back to release 1", first)
    assert on_disk(data_folder).read_text() == Document.read(CONFIG).stamped(3)


def test_an_editor_of_an_old_text_is_warned_and_sees_both(model: Model, actor: Actor) -> None:
    config_apply(model=model, document=Document.read(CONFIG + "# mine\n"), actor=actor, base_release=1)
    with pytest.raises(Outdated, match="2 is the current one") as reported:
        config_apply(model=model, document=Document.read(CONFIG + "# theirs\n"), actor=actor, base_release=1)
    error = reported.value
    assert (error.base_text, error.current_text) == (CONFIG, CONFIG + "# mine\n")
    assert (error.current_release, error.current_by) == (2, "olga")


def test_configuring_needs_the_permission(model: Model, person: Callable[..., Any]) -> None:
    with pytest.raises(Forbidden):
        config_apply(model=model, document=Document.read(CONFIG + "# x\n"), actor=Actor(user=person("upload_code")))


def test_changing_the_policy_changes_what_is_live(
    model: Model, actor: Actor, published: Callable[..., Version]
) -> None:
    published(load=False)
    assert wanted_versions(model) == [1]
    config_apply(model=model, document=Document.read(CONFIG + "version_policy { all { } }"), actor=actor)
    assert wanted_versions(model) == [1, 2]


# -- drift -----------------------------------------------------------------------------------------------------------


def test_a_file_changed_by_hand_is_noticed_and_not_written_over(model: Model, actor: Actor, data_folder: Path) -> None:
    on_disk(data_folder).write_text(CONFIG + "# by hand\n")
    assert drift_check() == ["relu"]
    assert Model.objects.get().drift == ["config.pbtxt was edited."]
    with pytest.raises(Conflict, match="adopt that text or overwrite it"):
        config_apply(model=model, document=Document.read(CONFIG + "# by form\n"), actor=actor)


def test_the_text_of_a_release_that_was_broken_off_is_no_change_by_hand(
    model: Model, actor: Actor, data_folder: Path
) -> None:
    class Killed(BaseException):
        """Stands for a process that ends between writing the text and committing the release."""

    def broken_off(text: str) -> None:
        with suppress(Killed), transaction.atomic():
            config_apply(model=model, document=Document.read(text), actor=actor)
            raise Killed

    before, edited = on_disk(data_folder).read_text(), CONFIG.replace("max_batch_size: 8", "max_batch_size: 6")
    broken_off(edited)
    assert on_disk(data_folder).read_text() == Document.read(edited).stamped(2)
    assert drift_check() == []
    assert on_disk(data_folder).read_text() == before
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.before) == ("release.take_back", {"text": Document.read(edited).stamped(2)})
    broken_off(edited)  # and who comes before anybody has looked is not refused
    assert config_apply(model=model, document=Document.read(edited), actor=actor).number == 2


def test_drift_can_be_adopted(model: Model, actor: Actor, data_folder: Path) -> None:
    on_disk(data_folder).write_text(CONFIG + "# by hand\n")
    drift_check()
    release = drift_adopt(model=model, actor=actor)
    assert Document.read(release.text).text.endswith("# by hand\n")
    assert Model.objects.get().drift == []
    assert drift_check() == []
    assert AuditEntry.objects.first().action == "drift.adopt"


def test_drift_can_be_written_over(model: Model, actor: Actor, data_folder: Path) -> None:
    on_disk(data_folder).write_text("nonsense")
    drift_check()
    drift_overwrite(model=model, actor=actor)
    assert on_disk(data_folder).read_text() == Document.read(CONFIG).stamped(1)
    assert Model.objects.get().drift == []
    assert AuditEntry.objects.first().before == {"text": "nonsense"}


def test_nonsense_is_not_adopted(model: Model, actor: Actor, data_folder: Path) -> None:
    on_disk(data_folder).write_text("nonsense")
    with pytest.raises(Invalid):
        drift_adopt(model=model, actor=actor)


def test_versions_that_come_and_go_by_hand_are_adopted(model: Model, actor: Actor, data_folder: Path) -> None:
    folder = data_folder / "models" / "relu"
    (folder / "5").mkdir()
    (folder / "5" / "model.onnx").write_bytes(relu_bytes())
    (folder / "1").rename(data_folder / "elsewhere")
    drift_check()
    assert Model.objects.get().drift == ["Version 1 was removed.", "Version 5 was added."]
    drift_adopt(model=model, actor=actor)
    assert [(row.number, row.state) for row in model.versions.all()] == [(5, "published"), (1, "archived")]
    assert wanted_versions(model) == [5]
    assert Model.objects.get().last_number == 5


def test_a_folder_copied_into_the_repository_is_offered_and_can_be_adopted(actor: Actor, data_folder: Path) -> None:
    folder = data_folder / "models" / "copied"
    (folder / "2").mkdir(parents=True)
    (folder / "2" / "model.onnx").write_bytes(relu_bytes())
    (folder / "config.pbtxt").write_text(CONFIG)
    assert unmanaged_models() == ["copied"]
    model = model_adopt(name="copied", actor=actor)
    assert (model.desired_state, model.versions.get().number) == ("unloaded", 2)
    assert unmanaged_models() == []
    assert drift_check() == []
