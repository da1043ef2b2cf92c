"""The job `tune`: tries one configuration after the other, each on a server of its own, and keeps each trial when it ends.

The search is walked again from the kept trials, so the next attempt continues at the trial that was interrupted.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from django.db import transaction
from django.utils import timezone

from dashboard.jobs.context import JobCancelled, JobContext, undone_by
from dashboard.loads.program import Window
from dashboard.loads.requests import Request
from dashboard.measurements.feed_watch import feed_watch
from dashboard.measurements.figures import figure
from dashboard.measurements.inputs import encoded, requests_of
from dashboard.measurements.machine import cores, machine_of
from dashboard.measurements.own_server import end_server, own_server
from dashboard.measurements.runs import CANCEL_CHECK_S, UNDER_WAY, each, run_load, token
from dashboard.models import Job, Tuning
from dashboard.models.measurement import LoadFigures, MeasurementPlan, load_in_words, with_spread
from dashboard.models.tuning import Trial
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Conflict, DashboardError, Invalid, Unavailable
from dashboard.tuning.plan import AT_A_RATE, LATENCY, THROUGHPUT, measured_plan
from dashboard.tuning.scores import gain_of, score_of, score_of_figures
from dashboard.tuning.search import Score, Setting, Step, Values, search_step
from dashboard.tuning.space import Space, differences, documents_of, space_kept
from repository.core.quantities import count, latency

DONE, ENDED, FAILED = "done", "ended", "failed"
_TRIES = 2  # of one trial, if its server ends by itself
_SEARCH_PERCENT = 80


class _Run(NamedTuple):
    """A tuning under way. plan: of one trial. requests: of every trial."""

    context: JobContext
    tuning: Tuning
    plan: MeasurementPlan
    requests: list[Request]


def tune_run(context: JobContext) -> dict[str, object]:
    """Run the job `tune`, whose params are {"tuning": id}."""
    tuning = Tuning.objects.select_related("version__model").filter(pk=context.params["tuning"]).first()
    if tuning is None:
        raise Conflict("the tuning was deleted meanwhile")
    if tuning.state not in UNDER_WAY:
        return _result(tuning)
    with undone_by(lambda error: _end(tuning, *_outcome(error))):
        if end_server(tuning):
            context.log("Ended the server that an earlier attempt had left")
        _update(tuning, state=MeasurementState.RUNNING, machine=machine_of())
        plan, document = measured_plan(tuning.plan), documents_of(tuning, {})[tuning.version.model.name]
        requests = encoded(requests_of(plan, tuning.version, document), plan["encoding"], tuning.version, token())
        run = _Run(context, tuning, plan, requests)
        _search(run)
        _compare(run)
    _end(tuning, MeasurementState.DONE)
    return _result(tuning)


def tune_abandoned(job: Job) -> None:
    """End a tuning, and the server of its trial, after the job was ended while no worker ran it."""
    for tuning in Tuning.objects.filter(pk=job.params["tuning"], state__in=UNDER_WAY):
        end_server(tuning)
        if job.cancel_requested:
            _end(tuning, MeasurementState.CANCELLED)
        else:
            _end(tuning, MeasurementState.FAILED, job.error)


def trials_in_vain(job: Job) -> int:
    """Return how often a worker has died without a trial that ended since."""
    tuning = Tuning.objects.filter(pk=job.params["tuning"]).first()
    return job.attempt + 1 - (len(tuning.trials) if tuning is not None else 0)


# -- the search --------------------------------------------------------------------------------------------------------
def _search(run: _Run) -> None:
    """Try settings until the search has ended or its time is over, and keep the best one."""
    tuning, space = run.tuning, space_kept(run.tuning)
    if tuning.chosen:
        return
    texts = _texts(tuning)
    while True:
        tried = [trial for trial in tuning.trials if not trial["round"]]
        step, best = _step(space, tried, tuning, texts)
        if step.next is None or (tried and not _time_left(tuning)):
            break
        percent = _SEARCH_PERCENT * len(tried) / tuning.plan["most_trials"]
        trial = _try(run, step.next, 0, percent, best)
        if not tried and trial["state"] == FAILED:
            raise Invalid(f"the present configuration cannot be measured: {trial['note']}")
    if step.next is not None:
        run.context.log(f"The time of {tuning.plan['most_minutes']:g} min is over; the search was not complete")
    tuning.chosen = dict(step.best)
    _update(tuning, chosen=tuning.chosen)


def _step(
    space: Space, tried: Sequence[Trial], tuning: Tuning, texts: Callable[[Setting], Hashable]
) -> tuple[Step, Score | None]:
    """Return the next step of the search, and the best score. A setting with the texts of another one is not tried again."""
    by_texts = {texts(trial["setting"]): score_of(trial, tuning.plan) for trial in tried}
    known = {_values(space, trial["setting"]): score_of(trial, tuning.plan) for trial in tried}
    most = tuning.plan["most_trials"]
    while True:
        step = search_step(space.axes, space.present, known, most)
        if step.next is None or (same := by_texts.get(texts(step.next))) is None:
            return step, known.get(_values(space, step.best))
        known[_values(space, step.next)] = same
        most += 1


def _values(space: Space, setting: Setting) -> Values:
    return tuple(setting[axis.name] for axis in space.axes)


def _time_left(tuning: Tuning) -> bool:
    """Whether another trial fits before the final comparison, by the mean duration of the trials so far."""
    used = sum(trial["seconds"] for trial in tuning.trials)
    mean = used / len(tuning.trials)
    return used + mean * (1 + 2 * tuning.plan["rounds"]) < tuning.plan["most_minutes"] * 60


def _texts(tuning: Tuning) -> Callable[[Setting], Hashable]:
    """Return a function that returns the configurations of a setting, because two settings may have the same."""
    kept: dict[Hashable, Hashable] = {}

    def texts(setting: Setting) -> Hashable:
        key = tuple(sorted(setting.items()))
        if key not in kept:
            kept[key] = tuple(document.text for document in documents_of(tuning, setting).values())
        return kept[key]

    return texts


# -- the final comparison ----------------------------------------------------------------------------------------------
def _compare(run: _Run) -> None:
    """Try the present and the chosen setting in turn, because the best of many trials is partly luck."""
    tuning = run.tuning
    settings = (tuning.present, tuning.chosen)
    if not differences(tuning, tuning.chosen):
        _update(tuning, note="No configuration was better than the present one.")
        return
    rounds = tuning.plan["rounds"]
    for place in range(2 * rounds):
        number, setting = place // 2 + 1, settings[place % 2]
        if not any(trial["round"] == number and trial["setting"] == setting for trial in tuning.trials):
            percent = _SEARCH_PERCENT + (100 - _SEARCH_PERCENT) * place / (2 * rounds)
            _try(run, setting, number, percent, None)
    before, after = (
        [trial for trial in tuning.trials if trial["round"] and trial["setting"] == setting] for setting in settings
    )
    tuning.gain = gain_of(before, after, tuning.plan)
    _update(tuning, gain=tuning.gain)
    if tuning.gain is None:
        _update(tuning, note="A trial of the final comparison failed, so the gain is not known: tune again.")
    elif not tuning.gain["better"]:
        _update(tuning, note="The final comparison shows no gain beyond the spread: keep the present configuration.")


# -- one trial ---------------------------------------------------------------------------------------------------------
def _try(run: _Run, setting: Setting, number: int, percent: float, best: Score | None) -> Trial:
    """Run one trial and keep it. best: the score of the best trial; None to measure until the figures are stable."""
    tuning, context = run.tuning, run.context
    changes = (
        ", ".join(f"{one.label} {one.after}" for one in differences(tuning, setting)) or "the present configuration"
    )
    context.begin_step(
        percent, f"Round {number} of {tuning.plan['rounds']}: {changes}" if number else f"Trying {changes}"
    )
    began = time.monotonic()
    trial = Trial(setting=dict(setting), state=DONE, note="", round=number, figures=None, fits=False, seconds=0.0)
    for left in reversed(range(_TRIES)):
        try:
            figures, ended = _measure(run, setting, best)
            trial["figures"], trial["state"] = figures, ENDED if ended else DONE
            trial["fits"] = score_of_figures(figures, tuning.plan).fits
            break
        except DashboardError as error:
            context.check_cancelled()
            if isinstance(error, Unavailable) and left:
                context.log(f"Trying it again, because {error.message}")
                continue
            trial["state"], trial["note"] = FAILED, error.message
    trial["seconds"] = round(time.monotonic() - began, 1)
    context.check_cancelled()
    _keep(tuning, trial)
    context.log(_in_words(tuning, trial))
    return trial


def _measure(run: _Run, setting: Setting, best: Score | None) -> tuple[LoadFigures, bool]:
    """Measure a setting on a server of its own. Return the figures, and whether the trial ended early as clearly worse."""
    tuning, plan = run.tuning, run.plan
    steps = documents_of(tuning, setting)
    document = steps.pop(tuning.version.model.name)
    check = each(CANCEL_CHECK_S, run.context.check_cancelled)
    ended = False

    def heard(windows: Sequence[Window]) -> bool:
        nonlocal ended
        ended = best is not None and _hopeless(run, windows, best)
        return ended

    with own_server(tuning, document, check, steps) as server, feed_watch(server, plan, cores()) as watch:
        found = run_load(plan, tuning.version, server, watch, run.requests, plan["loads"][0], check, heard)
    return found, ended


def _hopeless(run: _Run, windows: Sequence[Window], best: Score) -> bool:
    """Whether the windows so far are worse than the best trial beyond the spread of both."""
    measured = [window.outcome for window in windows[1:]]
    if len(measured) < run.plan["least_windows"] or run.tuning.plan["goal"] not in (THROUGHPUT, LATENCY):
        return False
    so_far = LoadFigures(  # type: ignore[typeddict-item]  # the score reads no other figure
        per_second=figure(one.per_second for one in measured) or {"value": 0.0, "spread": None},
        p99_ms=figure(one.p99_ms for one in measured),
        requests=sum(one.requests for one in measured),
        failures=sum(one.failures for one in measured),
    )
    return score_of_figures(so_far, run.tuning.plan).clearly_below(best)


# -- the row -----------------------------------------------------------------------------------------------------------
def _keep(tuning: Tuning, trial: Trial) -> None:
    with transaction.atomic():
        row = Tuning.objects.select_for_update().filter(pk=tuning.pk).first()
        if row is None:
            raise Conflict("the tuning was deleted meanwhile")
        row.trials = [*row.trials, trial]
        row.save(update_fields=["trials"])
    tuning.trials = row.trials


def _outcome(error: Exception) -> tuple[MeasurementState, str]:
    if isinstance(error, JobCancelled):
        return MeasurementState.CANCELLED, ""
    message = (
        error.message if isinstance(error, DashboardError) else "it failed unexpectedly; the worker's log has more"
    )
    return MeasurementState.FAILED, message


def _end(tuning: Tuning, state: MeasurementState, note: str = "") -> None:
    _update(tuning, state=state, finished_at=timezone.now(), **({"note": note} if note else {}))


def _update(tuning: Tuning, **changes: object) -> None:
    """Change a tuning that is under way; one that has ended, or was deleted, stays as it is."""
    Tuning.objects.filter(pk=tuning.pk, state__in=UNDER_WAY).update(**changes)


def _result(tuning: Tuning) -> dict[str, object]:
    version = tuning.version
    return {"model": version.model.name, "version": version.number, "tuning": tuning.pk}


def _in_words(tuning: Tuning, trial: Trial) -> str:
    figures = trial["figures"]
    if figures is None:
        return f"Failed: {trial['note']}"
    p99 = figures["p99_ms"]
    slowest = f", p99 {with_spread(p99, latency)}" if p99 is not None else ""
    load = load_in_words(measured_plan(tuning.plan), figures["load"])
    early = "; ended early, clearly worse than the best" if trial["state"] == ENDED else ""
    limit = (
        ""
        if trial["fits"]
        else "; over the limit"
        if tuning.plan["goal"] not in AT_A_RATE
        else "; not within the limits"
    )
    return f"{load}: {with_spread(figures['per_second'], count)} requests/s{slowest}{limit}{early}"
