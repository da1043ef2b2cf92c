"""The job `measure`: runs the loads of a measurement one after the other, and keeps the figures of each as soon as it ends.

A measurement continues at the first load without figures, so it can be run again after its worker died.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from dashboard.jobs.context import JobCancelled, JobContext, undone_by
from dashboard.loads.program import Plan, Window
from dashboard.loads.requests import Request
from dashboard.measurements.feed_watch import BASELINE_S, FeedWatch, feed_watch
from dashboard.measurements.figures import Counts, load_figures
from dashboard.measurements.generator import windows_of
from dashboard.measurements.inputs import encoded, requests_of
from dashboard.measurements.machine import cores, machine_of
from dashboard.measurements.own_server import end_server, own_server
from dashboard.measurements.plan import GRPC, OPEN, OWN, RUNNING, SIGNATURE
from dashboard.measurements.statistics import statistics_of
from dashboard.models import Job, Measurement, Server, Version
from dashboard.models.measurement import Figure, LoadFigures, MeasurementPlan, load_in_words, with_spread
from dashboard.releases.digest import digest_of
from dashboard.servers.selectors import server_get
from dashboard.servers.services import LOCAL
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Conflict, DashboardError, Invalid, Unavailable
from repository.config.document import Document
from repository.core.layout import OVERLAY_FILE
from repository.core.quantities import count, latency

CANCEL_CHECK_S = 1.0
UNDER_WAY = (MeasurementState.WAITING, MeasurementState.RUNNING)


class Stopped(DashboardError):
    """The measurement took more from clients than its bounds allow."""


def measure_run(context: JobContext) -> dict[str, object]:
    """Run the job `measure`, whose params are {"measurement": id}."""
    measurement = Measurement.objects.select_related("version__model").filter(pk=context.params["measurement"]).first()
    if measurement is None:
        raise Conflict("the measurement was deleted meanwhile")
    if measurement.state not in UNDER_WAY:
        return _result(measurement)
    with undone_by(lambda error: _end(measurement, *_outcome(error))):
        if end_server(measurement):
            context.log("Ended the server that an earlier attempt had left")
        _update(measurement, state=MeasurementState.RUNNING, machine=machine_of())
        _measure(context, measurement)
    _end(measurement, MeasurementState.DONE)
    return _result(measurement)


def measure_abandoned(job: Job) -> None:
    """End a measurement, and its own server, after the job was ended while no worker ran it."""
    for measurement in Measurement.objects.filter(pk=job.params["measurement"], state__in=UNDER_WAY):
        end_server(measurement)
        if job.cancel_requested:
            _end(measurement, MeasurementState.CANCELLED)
        else:
            _end(measurement, MeasurementState.FAILED, job.error)


def _measure(context: JobContext, measurement: Measurement) -> None:
    plan, document = measurement.plan, Document.read(measurement.config)
    done = {figures["load"] for figures in measurement.loads}
    left = [load for load in plan["loads"] if load not in done]
    if not left:
        return
    if digest_of(measurement.version, document) != measurement.sha256:
        raise Conflict(f"{OVERLAY_FILE} of the version was changed after the measurement began: measure it again")
    asked = requests_of(plan, measurement.version, document)
    requests = encoded(asked, plan["encoding"], measurement.version, token())
    context.begin_step(0, "Starting a server" if plan["where"] == OWN else "Measuring the clients' latency")
    check = each(CANCEL_CHECK_S, context.check_cancelled)
    with _target(measurement, document, check) as server, feed_watch(server, plan, cores()) as watch:
        if plan["where"] == RUNNING:
            _baseline(watch, check)
        for load in left:
            place = plan["loads"].index(load)
            context.begin_step(100 * place / len(plan["loads"]), f"Load {load_in_words(plan, load)}")
            figures = _load(context, measurement, server, watch, requests, load)
            context.check_cancelled()
            _keep(measurement, figures)
            context.log(_in_words(measurement, figures))


@contextlib.contextmanager
def _target(measurement: Measurement, document: Document, check: Callable[[], None]) -> Iterator[Server]:
    if measurement.plan["where"] == OWN:
        with own_server(measurement, document, check) as server:
            yield server
    else:
        yield server_get(LOCAL)


def _baseline(watch: FeedWatch, check: Callable[[], None]) -> None:
    """Measure the clients' latency before the first load."""
    until = time.monotonic() + BASELINE_S
    while time.monotonic() < until:
        check()
        _refuse_unwatched(watch)
        time.sleep(0.1)
    watch.guard()


def _load(
    context: JobContext,
    measurement: Measurement,
    server: Server,
    watch: FeedWatch,
    requests: list[Request],
    load: float,
) -> LoadFigures:
    """Run one load. Raises Stopped as soon as a bound is broken, Invalid if the server answers no request."""
    plan, version = measurement.plan, measurement.version
    check_job = each(CANCEL_CHECK_S, context.check_cancelled)

    def go_on() -> None:
        check_job()
        if plan["where"] == RUNNING:
            _refuse_unwatched(watch)
            if watch.breach:
                raise Stopped(f"the measurement was stopped, because {watch.breach}")

    def heard(windows: Sequence[Window]) -> None:
        place = plan["loads"].index(load) + windows[-1].number / plan["most_windows"]
        context.progress(100 * place / len(plan["loads"]))

    return run_load(plan, version, server, watch, requests, load, go_on, heard)


def run_load(
    plan: MeasurementPlan,
    version: Version,
    server: Server,
    watch: FeedWatch,
    requests: list[Request],
    load: float,
    go_on: Callable[[], None],
    heard: Callable[[Sequence[Window]], bool | None],
) -> LoadFigures:
    """Run one load against a server that serves the version, and return its figures.

    go_on: called all the time while the load runs; it may raise to end the load. heard: called with the windows so far, the
    warm-up first, after each window but the warm-up; if it returns true, the load ends. Raises Invalid if no request succeeds.
    """
    windows: list[Window] = []
    readings: list[Counts] = []
    began = time.monotonic()
    with contextlib.closing(windows_of(_plan_of_load(plan, server, requests, load), go_on)) as found:
        for window in found:
            windows.append(window)
            readings.append(statistics_of(server, version.model.name, version.number))
            if window.number == 0:
                began = time.monotonic()
            elif heard(windows):
                break
    ended = time.monotonic()
    figures = load_figures(windows, readings)
    if not figures["requests"]:
        raise Invalid(unanswered(plan, load, figures["reasons"]))
    usage = watch.usage(began, ended)
    figures["cpu_cores"], figures["memory_bytes"] = usage.cpu_cores, usage.memory_bytes
    figures["energy_j"] = _per_request(usage.watts, figures["per_second"])
    return figures


def unanswered(plan: MeasurementPlan, load: float, reasons: Mapping[str, int]) -> str:
    """Return the sentence for a load of which no request succeeded."""
    reason = next(iter(reasons), "no answer came in time")
    is_refused = plan["inputs"] == SIGNATURE and reason.startswith("4")  # by the model, or for the shape
    hint = (
        ". If inputs made from the signature do not suit the model, choose golden requests or examples"
        if is_refused
        else ""
    )
    return f"no request of {load_in_words(plan, load)} succeeded: {reason}{hint}"


def _plan_of_load(plan: MeasurementPlan, server: Server, requests: list[Request], load: float) -> Plan:
    return Plan(
        address=server.grpc_url if plan["encoding"] == GRPC else server.http_url.partition("://")[2],
        requests=requests,
        loads=[load],
        open_loop=plan["loop"] == OPEN,
        warmup_s=plan["warmup_s"],
        window_s=plan["window_s"],
        least_windows=plan["least_windows"],
        most_windows=plan["most_windows"],
        spread=plan["variation"],
    )


def _per_request(watts: Figure | None, per_second: Figure) -> Figure | None:
    """Return the joules of one request."""
    if watts is None or not per_second["value"]:
        return None
    value = watts["value"] / per_second["value"]
    spread = None
    if watts["spread"] is not None and per_second["spread"] is not None and watts["value"]:
        parts = watts["spread"] / watts["value"], per_second["spread"] / per_second["value"]
        spread = value * (parts[0] ** 2 + parts[1] ** 2) ** 0.5
    return Figure(value=value, spread=spread)


def _refuse_unwatched(watch: FeedWatch) -> None:
    """Raise Unavailable if the feed has ended, because the clients of the server cannot be protected without it."""
    if watch.lost:
        raise Unavailable(f"the measurement was stopped, because the clients could not be watched: {watch.lost}")


def each(seconds: float, check: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `check` at most once in this time."""
    due = 0.0

    def sometimes() -> None:
        nonlocal due
        if time.monotonic() >= due:
            check()
            due = time.monotonic() + seconds

    return sometimes


def token() -> dict[str, str]:
    """Return the headers with which a measurement may call any model."""
    return {"Authorization": f"Bearer {settings.SERVER_INFER_KEY}"} if settings.REQUIRE_TOKENS else {}


def _keep(measurement: Measurement, figures: LoadFigures) -> None:
    with transaction.atomic():
        row = Measurement.objects.select_for_update().filter(pk=measurement.pk).first()
        if row is None:
            raise Conflict("the measurement was deleted meanwhile")
        row.loads = [one for one in row.loads if one["load"] != figures["load"]] + [figures]
        row.loads.sort(key=lambda one: one["load"])
        row.save(update_fields=["loads"])
    measurement.loads = row.loads


def _outcome(error: Exception) -> tuple[MeasurementState, str]:
    if isinstance(error, JobCancelled):
        return MeasurementState.CANCELLED, ""
    if isinstance(error, Stopped):
        return MeasurementState.STOPPED, error.message
    message = (
        error.message if isinstance(error, DashboardError) else "it failed unexpectedly; the worker's log has more"
    )
    return MeasurementState.FAILED, message


def _end(measurement: Measurement, state: MeasurementState, note: str = "") -> None:
    _update(measurement, state=state, note=note, finished_at=timezone.now())


def _update(measurement: Measurement, **changes: object) -> None:
    """Change a measurement that is under way; one that has ended, or was deleted, stays as it is."""
    Measurement.objects.filter(pk=measurement.pk, state__in=UNDER_WAY).update(**changes)


def _result(measurement: Measurement) -> dict[str, object]:
    version = measurement.version
    return {"model": version.model.name, "version": version.number, "measurement": measurement.pk}


def _in_words(measurement: Measurement, figures: LoadFigures) -> str:
    p99 = figures["p99_ms"]
    slowest = f", p99 {with_spread(p99, latency)}" if p99 is not None else ""
    stable = "" if figures["stable"] else f"; not stable after {figures['windows']} windows"
    load = load_in_words(measurement.plan, figures["load"])
    return f"{load}: {with_spread(figures['per_second'], count)} requests/s{slowest}{stable}"
