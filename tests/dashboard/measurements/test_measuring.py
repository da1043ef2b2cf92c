"""A measurement sends real requests to a real server, keeps each load when it ends, and leaves no process behind."""

import asyncio
import contextlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.examples.services import example_create
from dashboard.jobs.context import JobContext
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.loads.program import Plan
from dashboard.measurements import own_server, runs
from dashboard.measurements.feed_watch import FeedWatch
from dashboard.measurements.plan import plan_of
from dashboard.measurements.services import measurement_delete, measurement_start
from dashboard.models import Job, Measurement, ModelState, Server, Version
from dashboard.servers.messages import Stats
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid
from repository.config.document import Document
from repository.core.histogram import bucket_of
from serving.cli.command_line import build_parser, parse
from tests.dashboard.conftest import CONFIG
from tests.dashboard.measurements.conftest import SHORT
from tests.dashboard.processes import fixed_server, server_client
from tests.support.serving_process import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def start(actor: Actor, unqueued: list[int]) -> Callable[..., Measurement]:
    def start(version: Version, document: Document | None = None, **plan: Any) -> Measurement:
        given = {**SHORT, "loads": [1, 2], **plan}
        return measurement_start(version=version, actor=actor, plan=given, document=document)

    return start


# A process that starts another one, and never waits for it.
_NEGLIGENT = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid, flush=True)
sys.stdin.read()
"""


def run(measurement: Measurement) -> Measurement:
    assert measurement.job_id is not None
    job_run(job_id=measurement.job_id)
    return Measurement.objects.get(pk=measurement.pk)


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


@pytest.mark.parametrize(
    ("encoding", "loop", "loads"), [("binary", "closed", [1, 4]), ("json", "open", [50]), ("grpc", "closed", [2])]
)
def test_a_version_is_measured_on_a_server_of_its_own(
    relu: Version, start: Callable[..., Measurement], tmp_path: Path, encoding: str, loop: str, loads: list[float]
) -> None:
    found = run(start(relu, encoding=encoding, loop=loop, loads=loads))
    assert (found.state, found.note) == ("done", "")
    assert [row["load"] for row in found.loads] == loads
    for row in found.loads:
        assert row["failures"] == 0
        assert row["requests"] > 0
        assert row["p99_ms"] is not None
        assert row["p50_ms"] is not None
        assert row["p99_ms"]["value"] >= row["p50_ms"]["value"] > 0
        assert row["per_second"]["spread"] is not None
        assert set(row["split"]) == {"queue", "input", "compute", "output", "other", "wire"}
        assert row["split"]["compute"]["value"] > 0
        assert sum(batch["executions"] for batch in row["batches"]) > 0
    assert found.machine["cores"]
    assert found.job is not None
    assert found.job.state == "succeeded"
    assert f"{loads[0]:g}" in found.job.log
    no_process_is_left(tmp_path)


def test_another_configuration_can_be_measured_before_it_is_applied(
    relu: Version, start: Callable[..., Measurement]
) -> None:
    text = CONFIG + "dynamic_batching { max_queue_delay_microseconds: 3000 }\n"
    found = run(start(relu, Document.read(text), loads=[1]))
    assert found.state == "done"
    assert found.config == text
    assert found.loads[0]["split"]["queue"]["value"] > 2  # a lone request waits for the delay


def test_a_version_is_measured_with_its_examples(
    relu: Version, start: Callable[..., Measurement], actor: Actor
) -> None:
    with pytest.raises(Invalid, match="no example fits version 1"):
        start(relu, inputs="examples")
    x = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [1, -1, 2, -2] * 2}
    example_create(model=relu.model, actor=actor, name="two rows", request={"inputs": [x]})
    found = run(start(relu, inputs="examples", loads=[1]))
    assert found.state == "done"
    assert [batch["size"] for batch in found.loads[0]["batches"]] == [2]


def test_a_version_is_measured_with_examples_from_traffic_alone(
    relu: Version, start: Callable[..., Measurement], actor: Actor
) -> None:
    for name, rows, source in (("typed", 1, "typed"), ("of a client", 3, "traffic")):
        x = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [1, -1, 2, -2] * rows}
        if source == "traffic":
            with pytest.raises(Invalid, match="no example from traffic fits version 1"):
                start(relu, inputs="traffic")
        example_create(model=relu.model, actor=actor, name=name, request={"inputs": [x]}, source=source)
    found = run(start(relu, inputs="traffic", loads=[1]))
    assert [batch["size"] for batch in found.loads[0]["batches"]] == [3]


def test_the_settings_in_slipway_pbtxt_belong_to_what_was_measured(
    relu: Version, start: Callable[..., Measurement], settings: Any
) -> None:
    before = start(relu, loads=[1])
    overlay = settings.MODEL_REPOSITORY / "relu" / "1" / "slipway.pbtxt"
    overlay.write_text("instance_group [ { count: 2 } ]")
    found = run(before)
    assert found.state == "failed"
    assert found.note == "slipway.pbtxt of the version was changed after the measurement began: measure it again"
    after = run(start(relu, loads=[1]))
    assert (after.state, after.config) == ("done", before.config)
    assert after.sha256 != before.sha256


def test_the_own_server_has_only_the_flags_that_decide_how_a_model_runs(settings: Any, tmp_path: Path) -> None:
    given = ["--backend-config=onnxruntime,default-max-batch-size=2", "--rate-limit=execution_count"]
    settings.SERVER_FLAGS = [*given, "--cache-config=local,size=1000", "--log-file=server.log", "--memory-budget=1"]
    path = own_server._write_flags(tmp_path)
    assert path.read_text().splitlines()[-2:] == given
    options, _ = parse([f"@{path}"])
    assert (options.rate_limit, options.cache_size, options.memory_budget) == ("execution_count", 0, 0)
    known = {name for action in build_parser()._actions for name in action.option_strings}
    assert known >= own_server.PASSED_ON


@pytest.mark.parametrize(
    ("killed", "why"),
    [
        ("serving", "the server of the measurement was ended by SIGKILL"),
        ("dashboard.loads", "the load ended early: its program was ended"),
    ],
)
def test_a_measurement_says_which_of_its_processes_was_killed(
    relu: Version,
    start: Callable[..., Measurement],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: str,
    why: str,
) -> None:
    """SIGKILL comes after the first window of the second load, which has windows for much longer."""
    statistics_of, readings, plan_of_load = runs.statistics_of, itertools.count(), runs._plan_of_load

    def long_second_load(*asked: Any) -> Plan:
        plan = plan_of_load(*asked)
        return replace(plan, least_windows=1000, most_windows=1000) if plan.loads == [2] else plan

    def kill_and_read(*asked: Any) -> Any:
        if next(readings) == 5:
            [process] = [one for one in psutil.Process().children() if killed in one.cmdline()]
            process.kill()
            wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, what="the end of the process")
        return statistics_of(*asked)

    monkeypatch.setattr(runs, "statistics_of", kill_and_read)
    monkeypatch.setattr(runs, "_plan_of_load", long_second_load)
    found = run(start(relu, loads=[1, 2], least_windows=3))
    assert found.state == "failed"
    assert found.note.startswith(why)
    assert [row["load"] for row in found.loads] == [1]
    assert found.job is not None
    assert (found.job.state, found.job.error) == ("failed", found.note)
    no_process_is_left(tmp_path)


@pytest.mark.parametrize("before", ["runs", "has ended"])
def test_a_server_of_an_earlier_attempt_is_ended_although_nobody_reaps_it(
    relu: Version, start: Callable[..., Measurement], settings: Any, before: str
) -> None:
    """As in a container whose first process reaps nothing."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _NEGLIGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        measurement = start(relu)
        measurement.server = {"pid": server.pid, "started": server.create_time()}
        flags = settings.DATA_DIR / "measurements" / str(measurement.pk) / "server.args"
        flags.parent.mkdir(parents=True)
        flags.touch()
        if before == "has ended":
            server.kill()
            wait_until(lambda: server.status() == psutil.STATUS_ZOMBIE, what="the end of the server")
        assert own_server.end_server(measurement) is (before == "runs")
        assert server.status() == psutil.STATUS_ZOMBIE
        assert not flags.parent.exists(), "the flags have a key"
        parent.communicate("")


def test_a_version_that_cannot_be_loaded_fails_with_the_server_s_reason(
    relu: Version, start: Callable[..., Measurement], settings: Any, tmp_path: Path
) -> None:
    measurement = start(relu)
    (settings.MODEL_REPOSITORY / "relu" / "1" / "model.onnx").write_bytes(b"no model")
    found = run(measurement)
    assert found.state == "failed"
    assert "expected an ONNX model" in found.note
    assert found.job is not None
    assert found.job.error == found.note
    no_process_is_left(tmp_path)


def test_inputs_that_the_model_refuses_are_told_with_another_choice() -> None:
    refused = {"400 Bad Request: expected a PNG or JPEG file": 7}
    found = runs.unanswered(plan_of({}), 4, refused)
    assert found == (
        "no request of 4 clients succeeded: 400 Bad Request: expected a PNG or JPEG file. If inputs made from the signature do "
        "not suit the model, choose golden requests or examples"
    )
    assert "choose" not in runs.unanswered(plan_of({"inputs": "golden"}), 4, refused)
    assert runs.unanswered(plan_of({}), 4, {}).endswith(": no answer came in time")


def test_a_measurement_is_cancelled_at_any_moment_and_keeps_the_loads_that_ended(
    relu: Version, start: Callable[..., Measurement], actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = start(relu, loads=[1, 2, 3])
    keep = runs._keep

    def keep_and_cancel(measurement: Measurement, figures: Any) -> None:
        keep(measurement, figures)
        job_cancel(job=Job.objects.get(pk=measurement.job_id), actor=actor)

    monkeypatch.setattr(runs, "_keep", keep_and_cancel)
    found = run(measurement)
    assert found.state == "cancelled"
    assert [row["load"] for row in found.loads] == [1]
    no_process_is_left(tmp_path)


def test_a_measurement_whose_version_is_deleted_meanwhile_ends_with_a_sentence(
    relu: Version, start: Callable[..., Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_flags = own_server._write_flags

    def write_and_delete(folder: Path) -> Path:
        Version.objects.all().delete()
        return write_flags(folder)

    monkeypatch.setattr(own_server, "_write_flags", write_and_delete)
    job_id = start(relu).job_id
    assert job_id is not None
    job_run(job_id=job_id)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.error) == ("failed", "the measurement was deleted meanwhile")
    no_process_is_left(tmp_path)


def test_a_measurement_continues_at_the_first_load_without_figures(
    relu: Version, start: Callable[..., Measurement]
) -> None:
    measurement = start(relu, loads=[1, 2])
    first = run(measurement).loads[0]
    Measurement.objects.update(state="running", loads=[first])
    Job.objects.update(state="queued")
    found = run(measurement)
    assert found.state == "done"
    assert [row["load"] for row in found.loads] == [1, 2]
    assert found.loads[0] == first


def test_a_measurement_that_was_cancelled_in_the_queue_has_ended(
    relu: Version, start: Callable[..., Measurement], actor: Actor
) -> None:
    measurement = start(relu)
    assert measurement.job is not None
    job_cancel(job=measurement.job, actor=actor)
    assert Measurement.objects.get().state == "cancelled"


def test_only_one_measurement_of_a_version_is_under_way_and_it_is_not_deleted(
    relu: Version, start: Callable[..., Measurement], actor: Actor
) -> None:
    measurement = start(relu)
    with pytest.raises(Conflict, match="is being measured"):
        start(relu)
    with pytest.raises(Conflict, match="under way"):
        measurement_delete(measurement=measurement, actor=actor)


def test_measuring_needs_the_right_to_operate(relu: Version, person: Any) -> None:
    with pytest.raises(Forbidden):
        measurement_start(version=relu, actor=Actor(user=person("upload_data")))


# -- the running server -------------------------------------------------------------------------------------------------


@pytest.fixture
def running(relu: Version, settings: Any) -> Iterator[Server]:
    """The bundled server, which serves the version."""
    with fixed_server(settings.MODEL_REPOSITORY) as fixed:
        Server.objects.filter(name="local").update(**fixed.addresses())
        server = Server.objects.get()
        fixed.start()
        server_client(server).load("relu")
        yield server


def test_a_version_that_does_not_serve_is_not_measured_on_the_running_server(
    relu: Version, start: Callable[..., Measurement]
) -> None:
    ModelState.objects.all().delete()
    with pytest.raises(Conflict, match="measure it on a server of its own"):
        start(relu, where="running")


def test_the_running_server_is_measured_within_bounds(
    running: Server, relu: Version, start: Callable[..., Measurement]
) -> None:
    found = run(start(relu, where="running", most_cpu=1.0, loads=[1]))
    assert (found.state, found.note) == ("done", "")
    assert found.loads[0]["requests"] > 0


def test_a_measurement_stops_when_it_takes_too_much_from_the_running_server(
    running: Server, relu: Version, start: Callable[..., Measurement]
) -> None:
    found = run(start(relu, where="running", most_cpu=0.01, loads=[8], window_s=20.0))
    assert found.state == "stopped"
    assert "of the processors, and the bound is 1%" in found.note
    assert found.loads == []


def stats(number: int, requests_us: dict[int, int], cpu_seconds: float = 0.0, pending: int = 0) -> Stats:
    """An event of the feed after `number` seconds. requests_us: latency in us -> the number of requests so far."""
    counts = {str(bucket_of(us)): count for us, count in requests_us.items()}
    row: Any = {"name": "other", "version": "1", "pending": pending, "request_latency": {"counts": counts}}
    usage: Any = {"cpu_seconds": cpu_seconds, "rss_bytes": number << 20, "threads": 1, "gpus": [{"power_w": 50.0}]}
    return {"time": float(number), "server": usage, "models": [row]}


@pytest.fixture
def watch(server: Server) -> FeedWatch:
    """A watch after a baseline in which clients of another model had a latency of 2 ms."""
    watch = FeedWatch(server, plan_of({"most_pending": 5, "most_cpu": 0.5}), cores=2)
    for number in range(4):
        watch.take(stats(number, {2000: 100 * number}, cpu_seconds=0.5 * number), float(number))
    watch.guard()
    return watch


def test_the_bounds_hold_while_clients_notice_nothing(watch: FeedWatch) -> None:
    for number in range(4, 9):
        watch.take(stats(number, {2000: 100 * number}, cpu_seconds=0.5 * number), float(number))
    assert watch.breach == ""
    used = watch.usage(4.0, 8.0)
    assert used.cpu_cores == {"value": 0.5, "spread": 0.0}
    assert used.memory_bytes == 8 << 20
    assert used.watts == {"value": 50.0, "spread": 0.0}


def test_a_growing_p99_of_clients_breaks_a_bound(watch: FeedWatch) -> None:
    watch.take(stats(4, {2000: 300, 9000: 100}), 4.0)
    assert watch.breach.startswith("the p99 of clients grew to ")


def test_waiting_requests_break_a_bound(watch: FeedWatch) -> None:
    watch.take(stats(4, {2000: 400}, pending=6), 4.0)
    assert watch.breach == "6 requests were waiting on the server, and the bound is 5"


def test_the_use_of_processors_breaks_a_bound(watch: FeedWatch) -> None:
    for number in range(4, 7):
        watch.take(stats(number, {2000: 100 * number}, cpu_seconds=1.5 * number), float(number))
    assert watch.breach.startswith("the server used ")


def test_a_feed_that_ends_stops_the_measurement(server: Server) -> None:
    watch = FeedWatch(server, plan_of({}), cores=2)
    asyncio.run(watch.follow())
    assert "does not answer" in watch.lost


# -- REST ---------------------------------------------------------------------------------------------------------------


def test_a_measurement_over_rest_from_its_start_to_its_comparison(relu: Version, api: APIClient) -> None:
    address = "/api/v1/models/relu/versions/1/measurements"
    ids = []
    for _ in range(2):
        answer = api.post(address, {**SHORT, "loads": [1]}, format="json")
        assert answer.status_code == 202, answer.content
        assert answer.json()["state"] == "waiting"
        job_run(job_id=answer.json()["job"])
        ids.append(answer.json()["id"])
    one = api.get(f"{address}/{ids[0]}").json()
    assert (one["state"], one["version"], one["loads"][0]["load"]) == ("done", 1, 1.0)
    assert [row["id"] for row in api.get(address).json()["results"]] == ids[::-1]
    found = api.get(f"{address}/{ids[1]}/comparison?with={ids[0]}").json()
    assert {row["name"] for row in found["differences"]} == {"per_second", "p50_ms", "p95_ms", "p99_ms"}
    assert found["unlike"] == []
    assert all(row["words"] for row in found["differences"])
    beside = api.get(f"/api/v1/measurements/comparison?run={ids[0]}&run={ids[1]}").json()
    [load] = beside["loads"]
    assert [(place["measurement"], place["model"], place["version"]) for place in load["places"]] == [
        (pk, "relu", 1) for pk in ids
    ]
    assert load["places"][0]["differences"] == []
    assert {row["name"] for row in load["places"][1]["differences"]} == {"per_second", "p99_ms"}
    assert api.get("/api/v1/measurements/comparison").status_code == 400
    assert api.get("/api/v1/measurements/comparison?run=999999").status_code == 404
    assert api.get(f"{address}/{ids[1]}/comparison").status_code == 400
    assert api.get(f"{address}/{ids[1]}/comparison?with={ids[1]}").status_code == 404
    assert api.delete(f"{address}/{ids[0]}").status_code == 204
    assert api.get(f"{address}/{ids[0]}").status_code == 404


def test_a_plan_that_cannot_be_run_is_refused_over_rest(relu: Version, api: APIClient) -> None:
    address = "/api/v1/models/relu/versions/1/measurements"
    for wrong in (
        {"loads": [0]},
        {"where": "moon"},
        {"rows": 0},
        {"window_s": 60, "most_windows": 50, "loads": [1, 2, 3]},
    ):
        answer = api.post(address, wrong, format="json")
        assert answer.status_code == 400, answer.content
    assert not Measurement.objects.exists()


def test_progress_and_log_name_the_loads(
    relu: Version, start: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    begin = JobContext.begin_step
    monkeypatch.setattr(
        JobContext, "begin_step", lambda self, percent, step: [steps.append(step), begin(self, percent, step)]
    )
    found = run(start(relu, loads=[1, 2]))
    assert steps == ["Starting a server", "Load 1 client", "Load 2 clients"]
    assert found.job is not None
    assert re.search(r"^2 clients: \S+( k)? ± \S+( k)? requests/s, p99 \S+ [mµ]?s ± \S+ [mµ]?s", found.job.log, re.M)
