"""Records of `up` and `watch` about servers, their processes and their models. Pages only read them."""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from dashboard.models import Model, ModelState, ModelSync, Release, Server, ServerState
from dashboard.servers.messages import Loading
from dashboard.servers.services import server_event_record
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
    """Record that the server answers.

    ready: every wanted model is loaded or has failed. instance: the server's id of its process, "" while it is not known.
    """
    changes: dict[str, object] = {"state": ServerStatus.READY if ready else ServerStatus.RUNNING}
    rows = ServerState.objects.filter(server=server)
    if instance:
        changes["instance"] = instance
        if not server.bundled:  # `up` counts and records the restarts of the bundled one
            _count_restart(rows, server, instance)
    rows.exclude(**changes).update(**changes)
    with quietly():
        rows.update(checked_at=timezone.now())


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


def model_states_record(*, server: Server, statuses: list[VersionStatus]) -> None:
    """Replace the recorded states of the server's models; only rows that change are written."""
    known = {(row.model_name, row.version): row for row in ModelState.objects.filter(server=server)}
    with transaction.atomic():
        for status in statuses:
            row = known.pop((status.name, status.version), None)
            if row is None or any(getattr(row, name) != value for name, value in status.values.items()):
                ModelState.objects.update_or_create(
                    server=server,
                    model_name=status.name,
                    version=status.version,
                    defaults={**status.values, "updated_at": timezone.now()},
                )
        ModelState.objects.filter(pk__in=[row.pk for row in known.values()]).delete()


def model_sync_succeeded(
    *,
    server: Server,
    model_id: int,
    generation: int,
    instance: str,
    event: tuple[str, str],
    release: Release | None = None,
) -> None:
    """Record that the server has applied a generation. event: an EventKind and a sentence, "" for no event. release: the
    release that it has loaded, None after an unload."""
    values = {"applied_generation": generation, "instance": instance, "release": release}
    _sync_write(server, model_id, **values, attempts=0, error="")
    kind, message = event
    if message:
        server_event_record(server=server, kind=kind, message=message, model_name=_name(model_id))


def model_sync_failed(*, server: Server, model_id: int, generation: int, attempts: int, error: str) -> None:
    """Record that a load or unload of a generation failed, unless the model has a newer generation, which has not failed.

    Only a new reason makes an event, so retries make none. A reason is not new if only its numbers differ, such as free memory.
    """
    if wanted_generation(server, model_id) != generation:
        return
    before = ModelSync.objects.filter(server=server, model_id=model_id).values_list("error", flat=True).first()
    _sync_write(server, model_id, attempts=attempts, error=error)
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


def model_sync_overrides(*, server: Server, model_id: int, override: bool) -> None:
    """Record, before a load, whether it sends a configuration in place of the folder's. A write may take long, so nothing is
    written if the row already says so."""
    if not ModelSync.objects.filter(server=server, model_id=model_id, override=override).exists():
        _sync_write(server, model_id, override=override)


def model_sync_recovered(*, server: Server, model_id: int) -> None:
    """Record that a failure has passed without another load."""
    ModelSync.objects.filter(server=server, model_id=model_id).update(attempts=0, error="")


def _sync_write(server: Server, model_id: int, **values: object) -> None:
    """Write the row of a model, unless the model was deleted meanwhile."""
    if Model.objects.filter(pk=model_id).exists():
        values["attempted_at"] = timezone.now()
        ModelSync.objects.update_or_create(server=server, model_id=model_id, defaults=values)


def _name(model_id: int) -> str:
    return Model.objects.filter(pk=model_id).values_list("name", flat=True).first() or ""
