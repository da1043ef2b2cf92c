"""A tuning tries configurations on servers of its own, keeps each trial, measures the gain again, and is applied."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.measurements import own_server
from dashboard.measurements.services import measurement_start
from dashboard.models import Job, Release, Rollout, Tuning, Upload, Version
from dashboard.releases.selectors import current_document
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid
from dashboard.tuning import canary, runs
from dashboard.tuning.services import tuning_apply, tuning_canary, tuning_delete, tuning_start
from repository.config import version_settings
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, serve
from tests.dashboard.measurements.conftest import load_row
from tests.dashboard.tuning.conftest import FIXED_COST, SHORT, trial
from tests.support.serving_process import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def start(actor: Actor, unqueued: list[int]) -> Callable[..., Tuning]:
    def start(version: Version, **plan: Any) -> Tuning:
        return tuning_start(version=version, actor=actor, plan={**SHORT, **plan})

    return start


def run(tuning: Tuning) -> Tuning:
    assert tuning.job_id is not None
    job_run(job_id=tuning.job_id)
    return Tuning.objects.get(pk=tuning.pk)


def no_process_is_left(folder: Path) -> None:
    """Wait until no process names the folder: a child of a server that was killed ends by itself, a moment later."""
    wait_until(lambda: not named_processes(folder), what="the end of the processes")


def named_processes(folder: Path) -> list[list[str]]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in part for part in process.cmdline()):
                found.append(process.cmdline())
    return found


def test_a_badly_configured_model_becomes_at_least_twice_as_fast(
    slow: Version, start: Callable[..., Tuning], actor: Actor, api: APIClient, tmp_path: Path, settings: Any
) -> None:
    found = run(start(slow))
    assert found.job is not None
    assert found.state == "done", found.job.log
    searched = [one for one in found.trials if not one["round"]]
    assert [one["setting"]["slow:queue_delay"] for one in searched] == ["off", "0"]
    assert [one["round"] for one in found.trials if one["round"]] == [1, 1, 2, 2]
    assert found.chosen["slow:queue_delay"] == "0"
    assert found.gain is not None
    assert found.gain["change"] >= 1.0, found.job.log  # up to 7, because eight requests share an execution
    assert found.gain["spread"] is not None
    assert "Trying Batching" in found.job.log
    assert found.job.progress == 100
    no_process_is_left(tmp_path)

    address = f"/api/v1/models/slow/versions/1/tunings/{found.pk}"
    assert "+dynamic_batching" in api.get(address).json()["difference"]
    serve(slow.model)
    answer = api.post(f"{address}/canary", {}, format="json")
    assert answer.status_code == 202, answer.content
    assert api.post(f"{address}/canary", {}, format="json").status_code == 409
    job_run(job_id=answer.json()["id"])
    job = Job.objects.get(pk=answer.json()["id"])
    assert job.state == "succeeded", job.error
    rollout = Rollout.objects.get()
    assert (rollout.name, rollout.candidate, rollout.stable) == (job.result["rollout"], 2, 1)
    (own,) = version_settings.settings_of(current_document(slow.model).message).values()
    assert own.HasField("dynamic_batching")
    assert (settings.MODEL_REPOSITORY / "slow" / "2" / "model.py").read_bytes() == FIXED_COST
    with pytest.raises(Conflict, match="already"):
        tuning_canary(tuning=Tuning.objects.get(), actor=actor)


def test_a_candidate_that_cannot_be_loaded_is_a_failed_trial_with_its_sentence(
    relu: Version, start: Callable[..., Tuning], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    override = own_server._override

    def refused(document: Document, number: int) -> str:
        text = override(document, number)
        return text.replace("dynamic_batching", "nonsense") if "dynamic_batching" in text else text

    monkeypatch.setattr(own_server, "_override", refused)
    found = run(start(relu, most_trials=2))
    failed = [one for one in found.trials if one["state"] == "failed"]
    assert found.state == "done"
    assert found.chosen == found.present
    assert found.note == "No configuration was better than the present one."
    assert [one["figures"] for one in failed] == [None]
    assert "nonsense" in failed[0]["note"]
    no_process_is_left(tmp_path)


def test_a_version_whose_present_configuration_cannot_be_measured_fails(
    relu: Version, start: Callable[..., Tuning], settings: Any
) -> None:
    tuning = start(relu)
    (settings.MODEL_REPOSITORY / "relu" / "1" / "model.onnx").write_bytes(b"no model")
    found = run(tuning)
    assert found.state == "failed"
    assert found.note.startswith("the present configuration cannot be measured: ")
    assert "expected an ONNX model" in found.note
    assert found.job is not None
    assert found.job.error == found.note


def test_a_server_that_is_killed_once_does_not_fail_its_trial(
    relu: Version, start: Callable[..., Tuning], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed: list[int] = []
    measure = runs.run_load

    def kill_the_first(plan: Any, version: Version, *rest: Any) -> Any:
        if not killed:
            killed.append(Tuning.objects.get().server["pid"])
            psutil.Process(killed[0]).kill()
        return measure(plan, version, *rest)

    monkeypatch.setattr(runs, "run_load", kill_the_first)
    found = run(start(relu, most_trials=1))
    assert (found.state, [one["state"] for one in found.trials]) == ("done", ["done"])
    assert found.job is not None
    assert found.job.log.startswith("Trying the present configuration\nTrying it again, because ")
    no_process_is_left(tmp_path)


def test_a_tuning_is_cancelled_at_any_moment_and_keeps_the_trials_that_ended(
    relu: Version, start: Callable[..., Tuning], actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = runs._keep

    def keep_and_cancel(tuning: Tuning, trial: Any) -> None:
        keep(tuning, trial)
        job_cancel(job=Job.objects.get(pk=tuning.job_id), actor=actor)

    monkeypatch.setattr(runs, "_keep", keep_and_cancel)
    found = run(start(relu))
    assert (found.state, len(found.trials), found.chosen) == ("cancelled", 1, {})
    no_process_is_left(tmp_path)


def test_a_tuning_that_was_cancelled_in_the_queue_has_ended(
    relu: Version, start: Callable[..., Tuning], actor: Actor
) -> None:
    tuning = start(relu)
    assert tuning.job is not None
    job_cancel(job=tuning.job, actor=actor)
    assert Tuning.objects.get().state == "cancelled"


# -- starting -----------------------------------------------------------------------------------------------------------


def test_only_one_tuning_is_under_way_and_it_is_not_deleted(
    relu: Version, start: Callable[..., Tuning], actor: Actor
) -> None:
    tuning = start(relu)
    with pytest.raises(Conflict, match="is being tuned"):
        start(relu)
    with pytest.raises(Conflict, match="under way"):
        tuning_delete(tuning=tuning, actor=actor)


def test_a_tuning_that_is_begun_during_a_measurement_waits_for_its_end(
    relu: Version, start: Callable[..., Tuning], actor: Actor
) -> None:
    measurement = measurement_start(version=relu, actor=actor, plan={"loads": [1]})
    Job.objects.filter(pk=measurement.job_id).update(state="running", started_at=timezone.now())
    job_id = start(relu).job_id
    assert job_id is not None
    job_run(job_id=job_id)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.step) == (
        "queued",
        f"Waits until job {measurement.job_id} has ended: Measure version 1 of relu",
    )
    assert Tuning.objects.get().state == "waiting"


def test_bounds_that_leave_nothing_to_vary_are_refused(
    published: Callable[..., Version], server: Any, start: Callable[..., Tuning]
) -> None:
    text = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0").replace("onnxruntime", "python")
    version = published(config_text=text.replace("[ 4 ]", "[ -1, 4 ]").replace('"python"', '"tensorrt"'))
    with pytest.raises(Invalid, match="nothing can be tuned"):
        start(version)


def test_tuning_and_applying_need_their_rights(
    relu: Version, person: Any, tuned: Callable[..., Tuning], actor: Actor
) -> None:
    found = tuned(relu, {"relu:queue_delay": "0"}, [])
    operator = Actor(user=person("operate"))
    for act in (
        lambda: tuning_start(version=relu, actor=Actor(user=person("upload_data"))),
        lambda: tuning_apply(tuning=found, actor=Actor(user=person("upload_data"))),
        lambda: tuning_canary(tuning=found, actor=operator),
    ):
        with pytest.raises(Forbidden):
            act()


# -- applying -----------------------------------------------------------------------------------------------------------


def test_the_chosen_configuration_is_applied_as_a_release(
    relu: Version, tuned: Callable[..., Tuning], actor: Actor
) -> None:
    found = tuned(relu, {"relu:queue_delay": "500"}, [])
    (release,) = tuning_apply(tuning=found, actor=actor)
    assert isinstance(release, Release)
    assert current_document(relu.model).message.dynamic_batching.max_queue_delay_microseconds == 500
    assert release.summary == "Tuned: batching: queue delay, µs off to 500"
    found.refresh_from_db()
    assert found.applied == {"releases": {"relu": release.number}}


def test_a_parameter_that_was_changed_meanwhile_is_not_overwritten(
    relu: Version, tuned: Callable[..., Tuning], actor: Actor
) -> None:
    found = tuned(relu, {"relu:queue_delay": "500"}, [])
    config_apply(model=relu.model, document=Document.read(CONFIG + "dynamic_batching { }\n"), actor=actor)
    for act in (tuning_apply, tuning_canary):
        with pytest.raises(Conflict, match="queue_delay of 'relu' was changed since tuning"):
            act(tuning=found, actor=actor)


def test_a_tuning_without_a_better_configuration_is_not_applied(
    relu: Version, tuned: Callable[..., Tuning], actor: Actor
) -> None:
    for found, words in (
        (tuned(relu, {}, []), "found nothing better"),
        (tuned(relu, {"relu:queue_delay": "0"}, [], state="running"), "only one that is done"),
    ):
        for act in (tuning_apply, tuning_canary):
            with pytest.raises(Conflict, match=words):
                act(tuning=found, actor=actor)


def test_a_canary_continues_after_its_version_was_published(
    relu: Version, tuned: Callable[..., Tuning], actor: Actor, unqueued: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(relu.model)
    found = tuned(relu, {"relu:queue_delay": "500"}, [])
    start = canary.rollout_start
    monkeypatch.setattr(canary, "rollout_start", lambda **_: 1 / 0)
    job = tuning_canary(tuning=found, actor=actor)
    job_run(job_id=job.pk)
    assert Job.objects.get(pk=job.pk).state == "failed"
    assert Tuning.objects.get().applied["version"] == 2
    monkeypatch.setattr(canary, "rollout_start", start)
    again = tuning_canary(tuning=Tuning.objects.get(), actor=actor)
    job_run(job_id=again.pk)
    again.refresh_from_db()
    assert again.state == "succeeded", again.error
    assert Version.objects.count() == 2
    assert Upload.objects.filter(model_name="relu").count() == 2
    assert Rollout.objects.get().candidate == 2


def test_a_canary_without_a_measurement_needs_a_reason_if_the_model_has_a_budget(
    relu: Version, tuned: Callable[..., Tuning], actor: Actor, unqueued: list[int]
) -> None:
    serve(relu.model)
    relu.model.budget = {"p99_ms": 20.0, "per_second": 100.0}
    relu.model.save()
    found = tuned(relu, {"relu:queue_delay": "500"}, [])
    job = tuning_canary(tuning=found, actor=actor)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert "version 2 of 'relu' may not go live" in job.error
    job = tuning_canary(tuning=Tuning.objects.get(), actor=actor, override="the tuning has measured it")
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.state == "succeeded", job.error


# -- REST ---------------------------------------------------------------------------------------------------------------


def test_a_tuning_over_rest(relu: Version, api: APIClient, tuned: Callable[..., Tuning], unqueued: list[int]) -> None:
    address = "/api/v1/models/relu/versions/1/tunings"
    answer = api.post(address, SHORT, format="json")
    assert answer.status_code == 202, answer.content
    assert answer.json()["state"] == "waiting"
    assert api.post(f"/api/v1/jobs/{answer.json()['job']}/cancel").status_code == 200
    first = f"{address}/{answer.json()['id']}"
    assert api.get(first).json()["state"] == "cancelled"
    assert api.post(f"{first}/apply").status_code == 409
    assert api.delete(first).status_code == 204
    assert api.get(first).status_code == 404
    found = tuned(relu, {"relu:queue_delay": "0"}, [trial({}, load_row(16, 100, 9.0))])
    row = api.get(address).json()["results"][0]
    assert (row["id"], row["trials"][0]["figures"]["per_second"]["value"]) == (found.pk, 100)
    assert api.post(f"{address}/{found.pk}/apply").json() == {"releases": {"relu": 2}}


def test_a_plan_that_cannot_be_run_is_refused_over_rest(relu: Version, api: APIClient) -> None:
    address = "/api/v1/models/relu/versions/1/tunings"
    for wrong in ({"goal": "moon"}, {"p99_ms": -1}, {"most_minutes": 0}, {"inputs": "golden"}):
        answer = api.post(address, wrong, format="json")
        assert answer.status_code == 400, answer.content
    assert not Tuning.objects.exists()
