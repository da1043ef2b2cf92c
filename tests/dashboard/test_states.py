"""An upload, a version and a rollout change their state by the tables of their state machines alone, and never from another
state."""

import ast
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.catalog import version_states
from dashboard.models import Job, Rollout, Upload, Version
from dashboard.models.upload_json import Contents, Publication, PublishRequest
from dashboard.releases import rollout_states
from dashboard.rollouts.plan import default_plan
from dashboard.shared.choices import RolloutState, UploadState, VersionState
from dashboard.shared.exceptions import WrongState
from dashboard.uploads import states
from dashboard.uploads.services import upload_create
from repository.config.document import NOTHING

ROOT = Path(settings.BASE_DIR)
MACHINES = (states, version_states, rollout_states)
READERS = {"filter", "exclude", "get"}
PUBLICATION = Publication(PublishRequest(note="first", rights=("VIEW",)), number=3, actor=None, text="backend: 'x'")


# -- nobody else writes a state ----------------------------------------------------------------------------------------


def mentions_a_state(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id in ("UploadState", "VersionState", "RolloutState")
        for one in ast.walk(node)
    )


def writers(source: str, *, every: bool) -> Iterator[int]:
    """Lines that write a state of an upload, a version or a rollout; `every`: of anything that has a state."""
    for node in ast.walk(ast.parse(source)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        written: list[ast.AST] = []
        if any(isinstance(target, ast.Attribute) and target.attr == "state" for target in targets):
            written = [node]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") not in READERS:
            written = [keyword.value for keyword in node.keywords if keyword.arg == "state"]
        if any(every or mentions_a_state(one) for one in written):
            yield node.lineno


def test_no_other_module_writes_the_state_of_an_upload_a_version_or_a_rollout() -> None:
    machines = {Path(str(machine.__file__)) for machine in MACHINES}
    modules = [path for path in (ROOT / "dashboard").rglob("*.py") if "migrations" not in path.parts]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(set(modules) - machines)
        for line in writers(path.read_text(), every=path.parent.name in ("uploads", "versions"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "upload.state = UploadState.FAILED",
        "Upload.objects.filter(pk=1).update(state=UploadState.FAILED)",
        "Version.objects.create(number=1, state=VersionState.ARCHIVED)",
        "Upload(state=UploadState.FAILED).save()",
    ],
)
def test_the_search_for_writers_finds_one(source: str) -> None:
    assert list(writers(source, every=False)) == [1]
    assert list(writers("Upload.objects.filter(state=UploadState.FAILED)", every=True)) == []


@pytest.mark.parametrize("machine", MACHINES, ids=["upload", "version", "rollout"])
def test_the_drawing_names_every_state_and_every_transition(machine: ModuleType) -> None:
    drawing = str(machine.__doc__)
    names = {state for one in machine.TRANSITIONS.values() for state in (*one.before, one.after)}
    assert [name for name in names if name.upper() not in drawing] == []
    assert [event for event in machine.TRANSITIONS if event.replace("_", " ") not in drawing.replace("_", " ")] == []


# -- every transition, from every state --------------------------------------------------------------------------------


@pytest.fixture
def upload(actor: Actor) -> Upload:
    return upload_create(actor=actor, model_name="relu", files=[{"path": "model.onnx", "size": 1}])


def upload_events(job: Job) -> dict[str, Callable[[Upload], None]]:
    return {
        "receive": states.receive,
        "complete": lambda upload: states.complete(upload, job=job),
        "inspect": states.inspect,
        "accept": lambda upload: states.accept(upload, contents={"files": ["a"]}, proposal={"format": "onnx"}),
        "reject": lambda upload: states.reject(upload, reason="why"),
        "fetch": lambda upload: states.fetch(upload, job=job),
        "lose": lambda upload: states.lose(upload, reason="why"),
        "extend": states.extend,
        "convert": lambda upload: states.convert(upload, conversion={"recipe": "onnx_fp16"}, job=job),
        "converted": lambda upload: states.converted(upload, conversion={}, job=job),
        "decline": lambda upload: decline(upload, {}),
        "keep": lambda upload: decline(upload, {"files": ["a"]}),
        "publish": lambda upload: states.publish(upload, publication=PUBLICATION, job=job),
        "decide": lambda upload: states.decide(upload, publication=PUBLICATION),
        "take_back": lambda upload: states.take_back(upload, reason="why"),
        "finish": states.finish,
        "cancel": states.cancel,
        "expire": lambda upload: states.expire(upload, now=upload.expires_at + timedelta(seconds=1)),
    }


def decline(upload: Upload, contents: Contents) -> None:
    """A conversion comes to nothing. contents: of an upload that was inspected before, else {}."""
    upload.contents = contents
    states.decline(upload, reason="why")


VERSION_EVENTS: dict[str, Callable[[Version], None]] = {
    "archive": version_states.archive,
    "restore": version_states.restore,
    "published": version_states.published,
    "archived": version_states.archived,
    "missing": version_states.missing,
}


ROLLOUT_EVENTS: dict[str, Callable[[Rollout], None]] = {
    "advance": lambda rollout: rollout_states.advance(rollout, rollout.model.releases.first()),
    "pause": lambda rollout: rollout_states.pause(rollout, baked_s=3),
    "resume": rollout_states.resume,
    "promote": lambda rollout: rollout_states.promote(rollout, by="olga", days=7),
    "keep": lambda rollout: rollout_states.keep(rollout, until=timezone.now()),
    "finish": lambda rollout: rollout_states.finish(rollout, reason="why", by="olga"),
    "abort": lambda rollout: rollout_states.abort(rollout, reason="why", by="olga"),
    "roll_back": lambda rollout: rollout_states.roll_back(rollout, reason="why"),
}


def row_of(one: Any) -> dict[str, Any]:
    return dict(type(one).objects.values().get(pk=one.pk))


def walk(one: Any, table: dict[str, Any], events: dict[str, Any], every_state: Any) -> None:
    """Try each event in each state: it leads where the table says, or is refused and changes nothing."""
    assert events.keys() == table.keys()
    for event, happen in events.items():
        for state in every_state:
            type(one).objects.filter(pk=one.pk).update(state=state)
            one.refresh_from_db()
            before = row_of(one)
            if state in table[event].before:
                happen(one)
                assert row_of(one)["state"] == table[event].after, (event, state)
            else:
                with pytest.raises(WrongState, match=table[event].refusal):
                    happen(one)
                assert row_of(one) == before, (event, state)


@pytest.mark.django_db
def test_an_upload_goes_from_each_state_only_where_its_table_says(upload: Upload) -> None:
    walk(upload, states.TRANSITIONS, upload_events(Job.objects.create(kind="inspect")), UploadState)


@pytest.mark.django_db
def test_a_version_goes_from_each_state_only_where_its_table_says(published: Callable[..., Version]) -> None:
    walk(published(), version_states.TRANSITIONS, VERSION_EVENTS, VersionState)


@pytest.mark.django_db
def test_a_rollout_goes_from_each_state_only_where_its_table_says(relu: Version) -> None:
    rollout = rollout_states.start(
        model=relu.model, name="r", kind="canary", stable=1, candidate=2, plan=default_plan("canary")
    )
    walk(rollout, rollout_states.TRANSITIONS, ROLLOUT_EVENTS, RolloutState)


@pytest.mark.django_db
def test_of_two_who_end_an_upload_one_is_refused(upload: Upload) -> None:
    mine, theirs = Upload.objects.get(), Upload.objects.get()
    states.cancel(mine)
    with pytest.raises(WrongState, match="cannot be cancelled: it is cancelled"):
        states.cancel(theirs)


@pytest.mark.django_db
def test_an_upload_that_was_continued_just_now_does_not_expire(upload: Upload) -> None:
    with pytest.raises(WrongState):
        states.expire(upload, now=timezone.now())
    upload.refresh_from_db()
    assert upload.state == UploadState.RECEIVING


# -- what its rows hold ------------------------------------------------------------------------------------------------


def test_what_publishing_was_asked_for_is_read_as_it_was_written() -> None:
    for publication in (PUBLICATION, Publication(PublishRequest(NOTHING, base_release=0), number=1, actor=7)):
        assert Publication.from_json(publication.to_json()) == publication


def test_rows_of_earlier_releases_are_read_as_they_are() -> None:
    """Release 0.1 wrote such rows while a publication was under way."""
    asked = {"config_text": None, "base_release": 2, "strict": False, "note": "n", "make_live": True, "load": False}
    stored = {**asked, "rights": ["VIEW", "OPERATE"], "number": 4, "actor": 1}
    publication = Publication.from_json(stored)
    assert publication is not None
    assert (publication.number, publication.actor, publication.text) == (4, 1, None)
    assert publication.request == PublishRequest(None, 2, False, "n", True, False, ("VIEW", "OPERATE"))
    assert Publication.from_json({**stored, "text": ""}) == Publication(publication.request, 4, 1, "")
    assert Publication.from_json({}) is None
