"""The job `truth`: finds the captured answers of a model's labels, and scores them.

Each file of the captures is read once; its labels are stored together. The job can be run again from its start: labels that
have found their answer are not looked for again.
"""

from datetime import UTC, datetime, timedelta

from django.db import transaction

from dashboard.drift.reading import is_batched
from dashboard.jobs.context import JobContext
from dashboard.models import Capture, Job, Model, TruthLabel
from dashboard.playground.labels import output_labels
from dashboard.shared.exceptions import Conflict
from dashboard.shared.repository_errors import repository_errors
from dashboard.truth.scoring import Scorer
from dashboard.truth.selectors import DAYS, label_counts, metric_of
from repository.core.capture_files import Rows, read_rows
from repository.core.captures import capture_files

_SLICE = 500  # rows of one statement
_PAGE = 100_000  # labels that are looked for at a time


def truth_run(context: JobContext) -> dict[str, object]:
    """Run the job `truth`, whose params are {"model": id}."""
    model = Model.objects.filter(pk=context.params["model"]).first()
    if model is None:
        raise Conflict("the model was deleted meanwhile")
    metric = metric_of(model)
    if metric is None:
        return {"joined": 0}
    scorer = Scorer(metric, batched=is_batched(model), names=output_labels(model.name).get(metric.output, []))
    joined, last = 0, 0
    while True:
        rows = TruthLabel.objects.filter(model=model, version=None, pk__gt=last).order_by("pk")[:_PAGE]
        labels = {label.request_id: label for label in rows}
        if not labels:
            break
        last = max(label.pk for label in labels.values())
        joined += _join(context, model, scorer, metric.output, labels)
    counts = label_counts(model)
    context.log(
        f"{joined} labels found their answers; {counts.waiting} are of requests that no capture has answered; "
        f"{counts.late} came more than {DAYS} days after the answer, and are not counted"
    )
    return {"joined": joined, "waiting": counts.waiting, "late": counts.late}


def truth_abandoned(job: Job) -> None:
    """Do nothing: labels that have found no answer are looked for again."""


@repository_errors()
def _join(context: JobContext, model: Model, scorer: Scorer, output: str, labels: dict[str, TruthLabel]) -> int:
    """Find the answers of labels, the newest first, and return how many were found."""
    captures = list(Capture.objects.filter(model=model).order_by("-created_at"))
    joined = 0
    for place, capture in enumerate(captures):
        context.begin_step(100 * place / len(captures), f"Reading capture {place + 1} of {len(captures)}")
        for file in reversed(capture_files(capture.folder)):
            if not labels:
                return joined
            context.check_cancelled()
            found = _scored(read_rows(file.path), scorer, output, labels)
            with transaction.atomic():
                context.refuse_superseded()
                _store(found)
            joined += len(found)
    return joined


def _scored(rows: Rows, scorer: Scorer, output: str, labels: dict[str, TruthLabel]) -> list[TruthLabel]:
    """Return the labels whose answers are in a file, with their scores, and take them out of `labels`. A label that came too
    late has no score."""
    column = rows.outputs.get(output)
    found = []
    for place in reversed(range(len(rows))):
        label = labels.get(rows.ids[place]) if rows.ids[place] else None
        if label is None or rows.errors[place] is not None:
            continue
        del labels[label.request_id]
        label.version = int(rows.versions[place])
        label.answered_at = datetime.fromtimestamp(float(rows.at[place]), UTC)
        late = label.received_at - label.answered_at > timedelta(days=DAYS)
        label.score = None if late or column is None else scorer.score(label.value, column.tensor(place))
        found.append(label)
    return found


def _store(labels: list[TruthLabel]) -> None:
    """Store what was found, unless a later label of the same request came meanwhile."""
    present = {
        pk: at
        for begin in range(0, len(labels), _SLICE)
        for pk, at in TruthLabel.objects.select_for_update()
        .filter(pk__in=[label.pk for label in labels[begin : begin + _SLICE]])
        .values_list("pk", "received_at")
    }
    kept = [label for label in labels if present.get(label.pk) == label.received_at]
    TruthLabel.objects.bulk_update(kept, ["version", "answered_at", "score"], batch_size=_SLICE)
