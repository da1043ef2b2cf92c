"""Records of `up` and `watch` about servers, their processes and their models. Pages only read them."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypedDict

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from dashboard.models import Model, ModelState, ModelSync, Release, Server, ServerEvent, ServerState
from dashboard.servers.messages import Loading
from dashboard.servers.services import server_event_record, server_events_record
from dashboard.servers.wanted import wanted_generation
from dashboard.shared.changes import quietly
from dashboard.shared.choices import EventKind, ModelStatus, ServerStatus
from repository.core.condition import Condition
from repository.files.storage import write_atomic

# Keys of ServerState.info: the UUIDs of the GPUs; the version; the states of `up`'s other processes, by name; the reason why
# the live feed is not understood ("" if it is understood); the identity of the machine that runs a bundled server, and its `up`
# (host, process, start); what another server's repository holds (servers.holdings).
GPUS, VERSION, PROCESSES, FEED, MACHINE, UP, HOLDS = "gpus", "version", "processes", "feed", "machine", "up", "holds"
BUILD = "compile"  # the process that compiles the server's modules
_NUMBERS = re.compile(r"[0-9.]+")
REASON_LIMIT = ServerState._meta.get_field("last_reason").max_length


class _StatusFields(TypedDict):
    state: str
    reason: str
    condition: str
    failed: bool


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A server's report of one version: the fields of ModelState, and its release."""

    name: str
    version: int
    state: str
    reason: str
    condition: str = ""
    failed: bool = False
    release: int = 0  # the number of the release that serves, 0 if the server does not report it
    loading: Loading | None = None

    @property
    def serves(self) -> bool:
        """True if the version answers requests; a request wakes a sleeping version."""
        return self.state == ModelStatus.READY or (self.condition == Condition.ASLEEP and not self.failed)

    @property
    def values(self) -> _StatusFields:
        """The fields of ModelState that may change."""
        return {"state": self.state, "reason": self.reason, "condition": self.condition, "failed": self.failed}


class Report(NamedTuple):
    """What a server reports of its versions. models: the names of the models that this is about, None for all; what is recorded
    of other models stays."""

    server: Server
    statuses: Sequence[VersionStatus]
    models: Collection[str] | None = None


class Seen(NamedTuple):
    """A server that answers. ready: every wanted model is loaded or has failed. instance: the server's id of its process, ""
    while it is not known."""

    server: Server
    ready: bool
    instance: str


class Applied(NamedTuple):
    """A server has applied a generation of a model. event: an EventKind and a sentence, "" for no event. release: the release
    that it has loaded, None after an unload."""

    server: Server
    model_id: int
    generation: int
    instance: str
    event: tuple[str, str]
    release: Release | None = None


def server_process_record(
    *, server: Server, state: str, pid: int | None, started_at: datetime | None, restarts: int, reason: str
) -> None:
    """Record the bundled server's process, for `up`. RUNNING does not replace READY, which `watch` may have recorded."""
    changes: dict[str, object] = {"pid": pid, "started_at": started_at, "restarts": restarts}
    if reason:
        changes["last_reason"] = reason[:REASON_LIMIT]
    rows = ServerState.objects.filter(server=server)
    rows.update(**changes)
    (rows.exclude(state=ServerStatus.READY) if state == ServerStatus.RUNNING else rows).update(state=state)


def wanted_models_write(names: list[str]) -> None:
    """Write the bundled server's --wanted-models-file: it answers 503 for these models until they are loaded."""
    write_atomic(Path(settings.WANTED_MODELS_FILE), json.dumps(names).encode(), mode=0o600)


def server_info_record(*, server: Server, key: str, value: object) -> None:
    """Set one key of ServerState.info to a value that is JSON."""
    with transaction.atomic():
        state, _ = ServerState.objects.select_for_update().get_or_create(server=server)
        state.info[key] = value
        state.save(update_fields=["info"])


def server_restart_take(*, server: Server) -> bool:
    """Return whether somebody asked for a restart since the last call."""
    waiting = ServerState.objects.filter(server=server, restart_requested_at__isnull=False)
    return bool(waiting.update(restart_requested_at=None))


def server_seen(*, server: Server, ready: bool, instance: str) -> None:
    """Record that a server answers, as `servers_seen`."""
    servers_seen([Seen(server, ready, instance)])


def servers_seen(several: Sequence[Seen]) -> None:
    """Record that servers answer."""
    rows = {row.pk: row for row in ServerState.objects.filter(server__in=[one.server.pk for one in several])}
    ready = {one.server.pk for one in several if one.ready}
    for one in several:
        row = rows.get(one.server.pk)
        if row is not None and one.instance and row.instance != one.instance:
            own = ServerState.objects.filter(server=one.server)
            if not one.server.bundled:  # `up` counts and records the restarts of the bundled one
                _count_restart(own, one.server, one.instance)
            own.update(instance=one.instance)
    for state, pks in ((ServerStatus.READY, ready), (ServerStatus.RUNNING, rows.keys() - ready)):
        if pks:
            ServerState.objects.filter(server__in=pks).exclude(state=state).update(state=state)
    servers_checked(rows.keys())


def servers_checked(servers: Collection[int]) -> None:
    """Record that these servers, by their ids, answer as before."""
    with quietly():
        ServerState.objects.filter(server__in=servers).update(checked_at=timezone.now())


def _count_restart(rows: QuerySet[ServerState], server: Server, instance: str) -> None:
    with transaction.atomic():
        another = rows.exclude(instance__in=("", instance))
        if another.update(restarts=F("restarts") + 1, instance=instance, started_at=timezone.now()):
            message = "Another process of the server answers: it was restarted."
            server_event_record(server=server, kind=EventKind.RESTARTED, message=message)


def last_seen(*, server: Server) -> datetime | None:
    """Return when the server last answered, to the precision of one poll, or None if it never answered."""
    return ServerState.objects.filter(server=server).values_list("checked_at", flat=True).first()


def server_lost(*, server: Server, reason: str) -> None:
    """Record that the server does not answer. The states that `up` records (starting, stopped) stay."""
    now, sentence = timezone.now(), f"{reason[:1].upper()}{reason[1:]}."
    with transaction.atomic():
        ServerState.objects.filter(server=server).update(checked_at=now)
        answered = (ServerStatus.RUNNING, ServerStatus.READY)
        ServerState.objects.filter(server=server, state__in=answered).update(
            state=ServerStatus.DOWN, last_reason=sentence[:REASON_LIMIT]
        )
        there = ~Q(state=ModelStatus.UNAVAILABLE) | Q(condition=Condition.ASLEEP)
        down = VersionStatus("", 0, ModelStatus.UNAVAILABLE, "the server is down")
        ModelState.objects.filter(there, server=server).update(**down.values, updated_at=now)
        if not server.bundled:
            server_event_record(server=server, kind=EventKind.UNREACHABLE, message=sentence)


def model_states_record(reports: Sequence[Report]) -> None:
    """Replace the recorded states of servers' models; only rows that change are written."""
    whole = Q(server__in=[one.server.pk for one in reports if one.models is None])
    parts = [one for one in reports if one.models is not None]
    names = {name for one in parts for name in one.models or ()}
    some = Q(server__in=[one.server.pk for one in parts], model_name__in=names)
    known = {(row.server_id, row.model_name, row.version): row for row in ModelState.objects.filter(whole | some)}
    changed, now = [], timezone.now()
    told: set[tuple[int, str, int]] = set()
    for one in reports:
        for status in one.statuses:
            key = one.server.pk, status.name, status.version
            told.add(key)
            row = known.get(key)
            if row is None or any(getattr(row, name) != value for name, value in status.values.items()):
                place = {"server_id": key[0], "model_name": key[1], "version": key[2]}
                changed.append(ModelState(**place, **status.values, updated_at=now))
    models = {one.server.pk: one.models for one in reports}
    gone = [
        row.pk
        for key, row in known.items()
        if key not in told and ((about := models[key[0]]) is None or row.model_name in about)
    ]
    with transaction.atomic():
        ModelState.objects.bulk_create(
            changed,
            update_conflicts=True,
            unique_fields=["server", "model_name", "version"],
            update_fields=[*_StatusFields.__annotations__, "updated_at"],
            batch_size=500,
        )
        ModelState.objects.filter(pk__in=gone).delete()


def models_applied(several: Sequence[Applied]) -> None:
    """Record together what servers have applied."""
    rows = [
        ModelSync(
            server=one.server,
            model_id=one.model_id,
            applied_generation=one.generation,
            instance=one.instance,
            release=one.release,
        )
        for one in several
    ]
    with transaction.atomic():
        names = _syncs_write(rows, "applied_generation", "instance", "release", "attempts", "error")
        events = [one for one in several if one.event[1]]
        server_events_record(
            ServerEvent(server=one.server, kind=kind, message=message, model_name=names.get(one.model_id, ""))
            for one in events
            for kind, message in [one.event]
        )


def model_sync_failed(*, server: Server, model_id: int, generation: int, attempts: int, error: str) -> None:
    """Record that a load or unload of a generation failed, unless the model has a newer generation, which has not failed.

    Only a new reason makes an event, so retries make none. A reason is not new if only its numbers differ, such as free memory.
    """
    if wanted_generation(server, model_id) != generation:
        return
    before = ModelSync.objects.filter(server=server, model_id=model_id).values_list("error", flat=True).first()
    _syncs_write([ModelSync(server=server, model_id=model_id, attempts=attempts, error=error)], "attempts", "error")
    if _NUMBERS.sub("", before or "") != _NUMBERS.sub("", error):
        name = _name(model_id)
        message = f"Model {name} failed: {error}"
        server_event_record(server=server, kind=EventKind.MODEL_FAILED, message=message, model_name=name)


def model_sync_instead(*, server: Server, model_id: int, instance: str, release: Release, message: str) -> None:
    """Record that the server serves an earlier release in place of the wanted one. message: an event's sentence."""
    ModelSync.objects.filter(server=server, model_id=model_id).update(
        release=release, instance=instance, applied_generation=0
    )
    server_event_record(server=server, kind=EventKind.MODEL_LOADED, message=message, model_name=_name(model_id))


def model_sync_again(*, servers: Iterable[Server], model_id: int) -> None:
    """Let `watch` load what is wanted of a model on some servers, whatever they have applied, and forget earlier failures."""
    rows = ModelSync.objects.filter(server__in=list(servers), model_id=model_id)
    rows.update(applied_generation=0, attempts=0, error="")


def model_syncs_override(loads: Sequence[tuple[Server, int, bool]]) -> None:
    """Record, before loads of models by their ids, whether each sends a configuration in place of the folder's. A write may
    take long, so nothing is written if the row already says so."""
    servers, models = {server.pk for server, _, _ in loads}, {model for _, model, _ in loads}
    rows = ModelSync.objects.filter(server__in=servers, model__in=models)
    known = {(server, model): override for server, model, override in rows.values_list("server", "model", "override")}
    wrong = [load for load in loads if known.get((load[0].pk, load[1])) != load[2]]
    _syncs_write(
        [ModelSync(server=one, model_id=model, override=override) for one, model, override in wrong], "override"
    )


def model_sync_recovered(*, server: Server, model_id: int) -> None:
    """Record that a failure has passed without another load."""
    ModelSync.objects.filter(server=server, model_id=model_id).update(attempts=0, error="")


def _syncs_write(rows: Sequence[ModelSync], *fields: str) -> dict[int, str]:
    """Write these fields of rows, unless their models were deleted meanwhile. Return the names of the models by their ids."""
    names = dict(Model.objects.filter(pk__in={row.model_id for row in rows}).values_list("pk", "name")) if rows else {}
    now = timezone.now()
    for row in rows:
        row.attempted_at = now
    with transaction.atomic():
        ModelSync.objects.bulk_create(
            {(row.server_id, row.model_id): row for row in rows if row.model_id in names}.values(),
            update_conflicts=True,
            unique_fields=["server", "model"],
            update_fields=[*fields, "attempted_at"],
        )
    return names


def _name(model_id: int) -> str:
    return Model.objects.filter(pk=model_id).values_list("name", flat=True).first() or ""
