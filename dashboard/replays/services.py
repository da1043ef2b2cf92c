"""Begins and deletes replays, and sets the replay gate of a model."""

import math

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import CLIENT_DATA, Actor, Right, require
from dashboard.captures.selectors import capture_get, require_reader
from dashboard.jobs.services import job_create
from dashboard.measurements.runs import UNDER_WAY
from dashboard.measurements.services import document_for
from dashboard.models import Capture, Model, Replay, Version
from dashboard.models.model import ReplayGate
from dashboard.releases.digest import digest_of
from dashboard.releases.replay_gates import gate_in_words
from dashboard.replays.fit import refuse_unfit, unlike_outputs
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.repository_errors import repository_errors

ABSOLUTE, RELATIVE = 1e-4, 1e-3  # the tolerance, as of a shadow
CLIENTS = 4
MOST_CLIENTS = 64
MOST_KEPT = 50  # replays of one capture
_MOST_TOLERANCE = 1e30


@repository_errors()
def replay_start(
    *,
    capture: Capture,
    version: Version,
    actor: Actor,
    absolute: float | None = None,
    relative: float | None = None,
    clients: int = CLIENTS,
) -> Replay:
    """Create a replay of a capture against a published version, with its job.

    absolute, relative: the tolerance; by default that of the model's gate if it demands this capture, else that of a shadow.
    clients: requests under way at a time.
    Raises Forbidden without the right to read the captures of the model, because the version gets what clients sent. Raises
    Conflict if the version is not published, the capture does not fit it (fit.refuse_unfit), or it is being replayed already.
    """
    require_reader(actor, capture.model)
    gate = capture.model.replay_gate
    mine = gate if gate.get("capture") == str(capture.pk) else ReplayGate(absolute=ABSOLUTE, relative=RELATIVE)
    absolute = _within("absolute", mine["absolute"] if absolute is None else absolute, 0, _MOST_TOLERANCE)
    relative = _within("relative", mine["relative"] if relative is None else relative, 0, _MOST_TOLERANCE)
    _within("clients", clients, 1, MOST_CLIENTS)
    with transaction.atomic():
        model = Model.locked(capture.model_id)
        capture = capture_get(model, capture.pk)
        version = model.versions.get(pk=version.pk)
        version.model = model
        if version.state != VersionState.PUBLISHED:
            raise Conflict(
                f"version {version.number} of '{model.name}' is {version.state}: only a published version can be replayed to"
            )
        rows = Replay.objects.filter(capture=capture)
        if rows.filter(version=version, state__in=UNDER_WAY).exists():
            raise Conflict(f"the capture is being replayed against version {version.number}: wait, or cancel that job")
        if rows.count() >= MOST_KEPT:
            raise Conflict(f"the capture has {MOST_KEPT} replays: delete some")
        document = document_for(version)
        if document.mistake:
            raise Invalid(f"the configuration cannot be read: {document.mistake.message}")
        refuse_unfit(capture, version, document)
        replay = Replay.objects.create(
            capture=capture,
            version=version,
            config=document.text,
            sha256=digest_of(version, document),
            absolute=absolute,
            relative=relative,
            clients=clients,
            unlike=unlike_outputs(capture),
            created_by=actor.user,
            created_by_name=actor.name,
        )
        title = f"Replay a capture of {model.name} against version {version.number}"
        replay.job = job_create(kind="replay", params={"replay": replay.pk}, actor=actor, title=title, model=model)
        replay.save(update_fields=["job"])
        audit_record(
            actor=actor,
            action="replay.start",
            model=model,
            summary=f"Began to replay a capture of {model.name} against version {version.number}",
            after={"replay": replay.pk, "capture": str(capture.pk), "version": version.number},
        )
    return replay


def replay_delete(*, replay: Replay, actor: Actor) -> None:
    """Delete a replay that has ended, with the answers that it kept. Raises Conflict if it is under way."""
    require(actor, CLIENT_DATA)
    with transaction.atomic():
        model = Model.locked(replay.version.model_id)
        replay.refresh_from_db()
        if replay.under_way:
            raise Conflict(f"replay {replay.pk} is under way: cancel its job first")
        audit_record(
            actor=actor,
            action="replay.delete",
            model=model,
            summary=f"Deleted replay {replay.pk} against version {replay.version.number} of {model.name}",
            before={"replay": replay.pk, "capture": str(replay.capture_id)},
        )
        replay.delete()


def replay_gate_set(
    *,
    model: Model,
    actor: Actor,
    capture: str = "",
    most_percent: float = 0.0,
    most_p99_times: float | None = None,
    absolute: float = ABSOLUTE,
    relative: float = RELATIVE,
) -> Model:
    """Demand that a version passes a replay of a capture before it goes live; an empty `capture` removes the gate.

    most_percent: of the compared requests that may differ beyond the tolerance. most_p99_times: the highest p99 in multiples of
    the captured one; None for any. Raises Invalid if a number is not allowed. Raises Conflict if the capture is running.
    """
    require(actor, Right.OPERATE)
    gate = ReplayGate()
    if capture:
        if capture_get(model, capture).running:
            raise Conflict("the capture is running: stop it, or wait for its end, then make it the gate")
        gate = ReplayGate(
            capture=capture,
            most_percent=_within("most_percent", most_percent, 0, 100),
            most_p99_times=None if most_p99_times is None else _within("most_p99_times", most_p99_times, 0.01, 1000),
            absolute=_within("absolute", absolute, 0, _MOST_TOLERANCE),
            relative=_within("relative", relative, 0, _MOST_TOLERANCE),
        )
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = model.replay_gate
        if before != gate:
            model.replay_gate = gate
            model.save(update_fields=["replay_gate"])
            words = (
                f"Set the replay gate of {model.name}: {gate_in_words(gate)}"
                if gate
                else f"Removed the replay gate of {model.name}"
            )
            audit_record(
                actor=actor, action="replay_gate.set", model=model, summary=words, before={**before}, after={**gate}
            )
    return model


def _within(field: str, value: float, least: float, most: float) -> float:
    if not (math.isfinite(value) and least <= value <= most):
        raise Invalid.at(field, f"expected '{field}' as a number from {least:g} to {most:g}")
    return value
