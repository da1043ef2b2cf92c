"""The job `replay`: sends the requests of a capture to a server of its own, window after window, and counts the answers.

A window is counted in one transaction with the position of the replay. So an attempt after a killed worker sends the window
that was under way again, and counts each request once. The memory that it takes is that of one file and one window.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from dashboard.drift.reading import files_after
from dashboard.jobs.context import JobCancelled, JobContext, undone_by
from dashboard.measurements.own_server import end_server, end_server_of_deleted, own_server
from dashboard.measurements.runs import CANCEL_CHECK_S, UNDER_WAY, each, token
from dashboard.models import Capture, Job, Replay, ReplayDifference, Server
from dashboard.models.replay import ReplayFigures
from dashboard.releases.digest import digest_of
from dashboard.replays.counting import Rules, Window, Worst
from dashboard.replays.fit import refuse_unfit
from dashboard.replays.latencies import latencies
from dashboard.replays.sending import Sender
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Conflict, DashboardError
from dashboard.shared.repository_errors import repository_errors
from repository.config.document import Document
from repository.core.capture_files import read_rows
from repository.core.captures import capture_files
from repository.core.comparison import Tolerance, class_outputs
from repository.core.histogram import Counts, merge, subtract
from repository.core.layout import OVERLAY_FILE
from repository.core.quantities import duration, share

WINDOW = 2000  # requests
LOAD_S = 1200.0  # how long the server of the replay may take to load the version
_RATE_S = 30.0
_DELETED = "the capture was deleted meanwhile"


def replay_run(context: JobContext) -> dict[str, object]:
    """Run the job `replay`, whose params are {"replay": id}."""
    pk = context.params["replay"]
    replay = Replay.objects.select_related("capture", "version__model").filter(pk=pk).first()
    if replay is None:
        end_server_of_deleted(Replay, pk)
        raise Conflict(_DELETED)
    if replay.state in UNDER_WAY:
        with undone_by(lambda error: _end(replay, *_outcome(error))), repository_errors():
            if end_server(replay):
                context.log("Ended the server that an earlier attempt had left")
            _update(replay, state=MeasurementState.RUNNING)
            _Run(context, replay).run()
        _end(replay, MeasurementState.DONE)
    return {"model": replay.version.model.name, "capture": str(replay.capture_id), "replay": replay.pk}


def replay_abandoned(job: Job) -> None:
    """End a replay, and its own server, after the job was ended while no worker ran it."""
    for replay in Replay.objects.filter(pk=job.params["replay"], state__in=UNDER_WAY):
        end_server(replay)
        if job.cancel_requested:
            _end(replay, MeasurementState.CANCELLED)
        else:
            _end(replay, MeasurementState.FAILED, job.error)


def replay_attempts_in_vain(job: Job) -> int:
    """Return how many attempts in a row have ended with the death of a worker, without a window that was counted."""
    last = Replay.objects.filter(pk=job.params["replay"]).values_list("progress_attempt", flat=True).first()
    return job.attempt + 1 - (last or 0)


class _Run:
    def __init__(self, context: JobContext, replay: Replay) -> None:
        self._context, self._replay = context, replay
        self._marks: deque[tuple[float, int]] = deque()  # seconds, requests done by then
        self._check = each(CANCEL_CHECK_S, self._refuse_ended)

    def run(self) -> None:
        replay, version = self._replay, self._replay.version
        document = Document.read(replay.config)
        if digest_of(version, document) != replay.sha256:
            raise Conflict(f"{OVERLAY_FILE} of the version was changed after the replay began: begin it again")
        refuse_unfit(replay.capture, version, document)
        self._context.begin_step(self._percent, "Starting a server")
        with own_server(replay, document, self._patient()) as server:
            replay.requests = sum(file.rows for file in capture_files(replay.capture.folder))
            model = version.model.name
            with Sender(server, model, version.number, token(), replay.clients) as sender:
                self._replay_all(server, sender, document)

    def _replay_all(self, server: Server, sender: Sender, document: Document) -> None:
        replay = self._replay
        name, number = replay.version.model.name, replay.version.number
        rules = Rules(
            Tolerance(replay.absolute, replay.relative), class_outputs(document.message), frozenset(replay.unlike)
        )
        figures = replay.figures
        worst = [
            Worst(row.score, row.max_absolute, -row.number, row.detail, row.outputs) for row in replay.differences.all()
        ]
        heapq.heapify(worst)
        before = latencies(server, name, number)
        for window in self._windows(rules, figures, worst):
            window.count(sender.replies(window.bodies(), self._tell))
            after = latencies(server, name, number, sum(before.values()) + window.answered)
            self._keep(window, subtract(after, before))
            before = after
            self._tell()

    def _windows(self, rules: Rules, figures: ReplayFigures, worst: list[Worst]) -> Iterator[Window]:
        position = self._replay.position
        for file in files_after(self._replay.capture.folder, position):
            rows = read_rows(file.path)
            first = int((rows.numbers <= position).sum())
            for begin in range(first, len(rows), WINDOW):
                yield Window(rows, range(begin, min(begin + WINDOW, len(rows))), rules, figures, worst)

    def _keep(self, window: Window, replayed: Counts) -> None:
        """Store the sums, the worst requests and the position. A superseded worker stores nothing."""
        replay, figures = self._replay, window.figures
        known = {int(bucket): count for bucket, count in figures["replayed"].items()}
        figures["replayed"] = {str(bucket): count for bucket, count in merge((known, replayed)).items()}
        replay.position, replay.done = window.last, replay.done + len(window.places)
        replay.requests = max(replay.requests, replay.done)
        replay.progress_attempt = self._context.job.attempt
        with transaction.atomic():
            self._context.refuse_superseded()
            if not Replay.objects.select_for_update().filter(pk=replay.pk).exists():
                raise Conflict(_DELETED)
            replay.save(update_fields=["figures", "position", "done", "requests", "progress_attempt"])
            numbers = [one.number for one in window.worst]
            replay.differences.filter(~Q(number__in=numbers)).delete()
            there = set(replay.differences.values_list("number", flat=True))
            ReplayDifference.objects.bulk_create(
                ReplayDifference(
                    replay=replay,
                    number=one.number,
                    score=one.score,
                    max_absolute=one.max_absolute,
                    detail=one.detail,
                    outputs=one.outputs,
                )
                for one in window.worst
                if one.number not in there
            )

    def _refuse_ended(self) -> None:
        """Raise JobCancelled after a cancellation, and Conflict after the capture was deleted."""
        self._context.check_cancelled()
        if not Capture.objects.filter(pk=self._replay.capture_id).exists():
            raise Conflict(_DELETED)

    def _patient(self) -> Callable[[], None]:
        """Return what is called while the version loads. It raises Conflict when that takes too long."""
        until = time.monotonic() + LOAD_S

        def go_on() -> None:
            self._check()
            if time.monotonic() > until:
                number, limit = self._replay.version.number, duration(LOAD_S)
                raise Conflict(
                    f"version {number} was not loaded within {limit}: look at the model's log, then replay it again"
                )

        return go_on

    @property
    def _percent(self) -> float:
        return 100 * self._replay.done / max(self._replay.requests, 1)

    def _tell(self) -> None:
        """Report the progress once a second: requests, rate, time left, and how many differ."""
        replay, now = self._replay, time.monotonic()
        if self._marks and now - self._marks[-1][0] < CANCEL_CHECK_S:
            return
        self._check()
        self._marks.append((now, replay.done))
        while self._marks[0][0] < now - _RATE_S:
            self._marks.popleft()
        seconds, requests = now - self._marks[0][0], replay.done - self._marks[0][1]
        step = f"{replay.done:,} of {replay.requests:,} requests"
        if requests > 0 and seconds > 0:
            left = duration((replay.requests - replay.done) * seconds / requests)
            step += f", {requests / seconds:,.0f}/s, {left} left"
        if replay.differ_share:
            step += f"; {share(replay.differ_share)} differ"
        self._context.progress(self._percent, step)


def _outcome(error: Exception) -> tuple[MeasurementState, str]:
    if isinstance(error, JobCancelled):
        return MeasurementState.CANCELLED, ""
    if isinstance(error, DashboardError):
        return MeasurementState.FAILED, error.message
    return MeasurementState.FAILED, "it failed unexpectedly; the worker's log has more"


def _end(replay: Replay, state: MeasurementState, note: str = "") -> None:
    _update(replay, state=state, note=note, finished_at=timezone.now())


def _update(replay: Replay, **changes: object) -> None:
    """Change a replay that is under way; one that has ended, or was deleted, stays as it is."""
    Replay.objects.filter(pk=replay.pk, state__in=UNDER_WAY).update(**changes)
