"""Sets the metric of a model, stores labels, and forgets old ones."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.configuration.signatures import served_signature
from dashboard.jobs.services import UNFINISHED, job_create
from dashboard.models import Capture, Job, Model, TruthLabel, TruthMetric
from dashboard.releases.selectors import current_document
from dashboard.shared.choices import TruthKind
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.truth.expression import parsed
from dashboard.truth.selectors import DAYS, matching_needed
from repository.core.captures import capture_files
from repository.core.errors import CaptureUnusable

KIND = "truth"
MOST_LABELS = 1_000_000  # of one model
MOST_AT_ONCE = 100_000  # labels of one request
LONGEST = 200  # characters of a request's id, and of a label
_SLICE = 500  # rows of one statement
_NOTHING = "none of these labels is stored"
_HIGHER = {TruthKind.ACCURACY: True, TruthKind.MAE: False, TruthKind.RMSE: False}


@dataclass(frozen=True, slots=True)
class LabelsAdded:
    """What became of labels that came together. labels: of different requests, stored. replaced: of these, those whose requests
    had a label already. repeated: rows that a later row of the same request replaced."""

    labels: int
    replaced: int
    repeated: int


def metric_set(
    *,
    model: Model,
    actor: Actor,
    kind: str,
    output: str = "",
    expression: str = "",
    higher_is_better: bool = True,
    limit: float | None = None,
    bound: float | None = None,
) -> TruthMetric:
    """Set the metric of a model; all labels are compared again, also if the metric stays, because names of classes may be new.

    output: by default the first one of the signature. limit: a guardrail of rollouts: by how much a candidate may be worse.
    bound: an alert: what the version that serves must not be worse than. Raises Invalid if the kind, the expression, the limit
    or the bound is wrong.
    """
    require(actor, Right.OPERATE)
    if kind not in TruthKind.values:
        raise Invalid.at("kind", f"expected one of {', '.join(TruthKind.values)}")
    if kind == TruthKind.OWN:
        parsed(expression)
    elif expression:
        raise Invalid.at("expression", "only an own metric has an expression")
    if limit is not None and not (math.isfinite(limit) and limit >= 0):
        raise Invalid.at("limit", "expected a number from 0 on: by how much a candidate may be worse")
    if bound is not None and not math.isfinite(bound):
        raise Invalid.at("bound", "expected a number: what the version that serves must not be worse than")
    wanted = {
        "kind": kind,
        "output": output or _first_output(model),
        "expression": expression,
        "higher_is_better": _HIGHER.get(TruthKind(kind), higher_is_better),
        "limit": limit,
        "bound": bound,
    }
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = TruthMetric.objects.filter(model=model).values(*wanted).first()
        fresh = {} if before == wanted else {"looked": {}, "trouble": ""}
        metric, _ = TruthMetric.objects.update_or_create(
            model=model, defaults={**wanted, **fresh, "changed_at": timezone.now()}
        )
        TruthLabel.objects.filter(model=model).update(version=None, answered_at=None, score=None)
        if before != wanted:
            audit_record(
                actor=actor,
                action="truth.metric",
                model=model,
                summary=f"Compares labels of {model.name} with '{metric.output}' by {metric.get_kind_display().lower()}",
                before=before or {},
                after=wanted,
            )
        _queue(model, actor)
    return metric


def labels_add(*, model: Model, actor: Actor, labels: Iterable[tuple[str, str]]) -> LabelsAdded:
    """Store labels by the id of their request. A label replaces an earlier one of the same request. If one is wrong, none is
    stored.

    Raises Invalid if an id or a label is empty or too long, or there are too many. Raises Conflict if the model is full.
    """
    require(actor, Right.OPERATE)
    sent = list(islice(labels, MOST_AT_ONCE + 1))
    if len(sent) > MOST_AT_ONCE:
        raise Invalid(f"expected at most {MOST_AT_ONCE} labels at once, so {_NOTHING}: send them in parts")
    given: dict[str, str] = {}
    for place, (request_id, value) in enumerate(sent, 1):
        for what, text in (("id", request_id), ("label", value)):
            if not text or len(text) > LONGEST or "\0" in text:
                wrong = "is empty" if not text else f"has more than {LONGEST} characters, or a NUL"
                raise Invalid(f"the {what} of row {place} {wrong}, so {_NOTHING}")
        given[request_id] = value
    if not given:
        raise Invalid("expected one label or more")
    with transaction.atomic():
        model = Model.locked(model.pk)
        rows = TruthLabel.objects.filter(model=model)
        ids = list(given)
        known = sum(
            rows.filter(request_id__in=ids[begin : begin + _SLICE]).count() for begin in range(0, len(ids), _SLICE)
        )
        if rows.count() + len(ids) - known > MOST_LABELS:
            raise Conflict(f"model '{model.name}' has {MOST_LABELS} labels, and may have no more in {DAYS} days")
        now = timezone.now()
        TruthLabel.objects.bulk_create(
            [TruthLabel(model=model, request_id=key, value=value, received_at=now) for key, value in given.items()],
            batch_size=_SLICE,
            update_conflicts=True,
            unique_fields=["model", "request_id"],
            update_fields=["value", "received_at", "version", "answered_at", "score"],
        )
        if TruthMetric.objects.filter(model=model).exists():
            _queue(model, actor)
    return LabelsAdded(len(given), known, len(sent) - len(given))


def csv_labels(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the labels of a CSV file with the columns id and label. Raises Invalid if it is none, or a row has too few or
    too many values."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid("the file is not UTF-8") from None
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    place = 0
    try:
        missing = [name for name in ("id", "label") if name not in (rows.fieldnames or [])]
        if missing:
            raise Invalid(f"the file has no column '{missing[0]}': expected the columns id and label")
        for place, row in enumerate(rows, 1):
            if None in row or None in row.values():
                raise Invalid(f"row {place} has another number of values than the first line, so {_NOTHING}")
            yield row["id"].strip(), row["label"].strip()
    except csv.Error as error:
        raise Invalid(f"row {place + 1} of the file cannot be read, so {_NOTHING}: {error}") from None


def json_labels(rows: Iterable[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield the labels of JSON rows: texts, numbers, true and false."""
    for row in rows:
        value = row["label"]
        if isinstance(value, float):
            yield str(row["id"]), f"{value:.17g}"
        elif isinstance(value, str | int):
            yield str(row["id"]), str(value)
        else:
            name = str(row["id"])[:40]
            raise Invalid(f"the label of request '{name}' is no text, number, true or false, so {_NOTHING}")


def labels_match() -> int:
    """Queue a job for each model whose labels may find an answer that was captured since the last look."""
    return sum(_queue(model, SYSTEM) for model in matching_needed() if _captured_since(model))


def labels_forget() -> int:
    """Remove the labels that came more than 30 days ago, and return their number."""
    cut = timezone.now() - timedelta(days=DAYS)
    return TruthLabel.objects.filter(received_at__lt=cut).delete()[1].get("dashboard.TruthLabel", 0)


def _captured_since(model: Model) -> bool:
    """Return whether a capture of the model has a file that is newer than the last look for answers."""
    last = Job.objects.filter(kind=KIND, model=model).order_by("-pk").values_list("finished_at", flat=True).first()
    looked = last.timestamp() if last is not None else 0.0
    for capture in Capture.objects.filter(model=model):
        try:
            files = capture_files(capture.folder)
            if files and files[-1].path.stat().st_mtime >= looked:
                return True
        except (OSError, CaptureUnusable):
            continue
    return False


def _queue(model: Model, actor: Actor) -> bool:
    """Queue a look for the answers of a model's labels, unless one waits in the queue; return whether it was queued."""
    if Job.objects.filter(kind=KIND, model=model, state=UNFINISHED[0]).exists():
        return False
    job_create(
        kind=KIND, params={"model": model.pk}, actor=actor, title=f"Join the labels of {model.name}", model=model
    )
    return True


def _first_output(model: Model) -> str:
    version = model.versions.order_by("-number").first()
    outputs = served_signature(current_document(model), version).get("outputs", []) if version is not None else []
    if not outputs:
        raise Invalid.at("output", "name the output that is the prediction")
    return outputs[0]["name"]
