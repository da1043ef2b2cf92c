"""Sets the metric of a model, stores labels, and forgets old ones."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

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

KIND = "truth"
MOST_LABELS = 1_000_000  # of one model
MOST_AT_ONCE = 100_000  # labels of one request
LONGEST = 200  # characters of a request's id, and of a label
_SLICE = 500  # rows of one statement
_HIGHER = {TruthKind.ACCURACY: True, TruthKind.MAE: False, TruthKind.RMSE: False}


def metric_set(
    *,
    model: Model,
    actor: Actor,
    kind: str,
    output: str = "",
    expression: str = "",
    higher_is_better: bool = True,
    limit: float | None = None,
) -> TruthMetric:
    """Set the metric of a model; all labels are compared again.

    output: by default the first one of the signature. limit: a guardrail of rollouts: by how much a candidate may be worse.
    Raises Invalid if the kind, the expression or the limit is wrong.
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
    wanted = {
        "kind": kind,
        "output": output or _first_output(model),
        "expression": expression,
        "higher_is_better": _HIGHER.get(TruthKind(kind), higher_is_better),
        "limit": limit,
    }
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = TruthMetric.objects.filter(model=model).values(*wanted).first()
        metric, _ = TruthMetric.objects.update_or_create(
            model=model, defaults={**wanted, "looked": {}, "changed_at": timezone.now()}
        )
        if before != wanted:
            TruthLabel.objects.filter(model=model).update(version=None, answered_at=None, score=None)
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


def labels_add(*, model: Model, actor: Actor, labels: Iterable[tuple[str, str]]) -> int:
    """Store labels by the id of their request, and return their number. A label replaces an earlier one of the same request.

    Raises Invalid if an id or a label is empty or too long, or there are too many. Raises Conflict if the model is full.
    """
    require(actor, Right.OPERATE)
    given: dict[str, str] = {}
    for place, (request_id, value) in enumerate(labels, 1):
        if place > MOST_AT_ONCE:
            raise Invalid(f"expected at most {MOST_AT_ONCE} labels at once: send the others after them")
        for what, text in (("id", request_id), ("label", value)):
            if not text or len(text) > LONGEST or "\0" in text:
                raise Invalid(f"the {what} of row {place} is empty, or has more than {LONGEST} characters")
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
    return len(given)


def csv_labels(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the labels of a CSV file with the columns id and label. Raises Invalid if it is none."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid("the file is not UTF-8") from None
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        missing = [name for name in ("id", "label") if name not in (rows.fieldnames or [])]
        if missing:
            raise Invalid(f"the file has no column '{missing[0]}': expected the columns id and label")
        for row in rows:
            yield (row["id"] or "").strip(), (row["label"] or "").strip()
    except csv.Error as error:
        raise Invalid(f"row {rows.line_num} of the file cannot be read: {error}") from None


def json_labels(rows: Iterable[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield the labels of JSON rows: texts, numbers, true and false."""
    for row in rows:
        value = row["label"]
        if isinstance(value, float):
            yield str(row["id"]), f"{value:.17g}"
        elif isinstance(value, str | int):
            yield str(row["id"]), str(value)
        else:
            raise Invalid(f"the label of request '{str(row['id'])[:40]}' is no text, number, true or false")


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
        files = capture_files(capture.folder)
        try:
            if files and files[-1].path.stat().st_mtime >= looked:
                return True
        except FileNotFoundError:
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
