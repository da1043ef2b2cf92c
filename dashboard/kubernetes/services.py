"""Keeps what was seen of environments in their clusters, and sets the number of replicas there."""

import logging
from collections.abc import Iterable
from datetime import timedelta

from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.access.control import restored_from
from dashboard.kubernetes.api import WORKLOADS, Kind, cluster_of
from dashboard.kubernetes.events import Change, differences, set_uid
from dashboard.kubernetes.look import Look
from dashboard.kubernetes.selectors import last_workloads, refusal
from dashboard.kubernetes.workloads import Scale, WorkloadRow, autoscalers_of, workload_of
from dashboard.models import ClusterLook, ReplicaCount, ReplicaEvent, ServerEnvironment
from dashboard.shared.changes import quietly
from dashboard.shared.exceptions import Conflict, Invalid

logger = logging.getLogger(__name__)

KEPT = timedelta(days=30)
MOST_KEPT = 5000  # rows of each kind, of one environment
_NOTED = timedelta(seconds=10)
_MOST_REPLICAS = 2**31 - 1  # that each database can store


def look_record(*, environment_id: int, source: str, look: Look) -> bool:
    """Keep what was seen, and return whether it differs from before. Two watchers may record the same."""
    now = timezone.now()
    with transaction.atomic():
        environment = ServerEnvironment.objects.select_for_update().filter(pk=environment_id).first()
        if environment is None or environment.source != source:  # a person has changed or removed it meanwhile
            return False
        row, made = ClusterLook.objects.get_or_create(environment=environment)
        found = {name: list(getattr(look, name)) for name in ("pods", "workloads", "autoscalers", "trouble")}
        changes = look.changes + differences(row.workloads, look.workloads, look.autoscalers)
        told = _keep_changes(environment, changes)
        counted = _keep_count(environment, look)
        changed = made or any(getattr(row, name) != value for name, value in found.items())
        if changed:
            ClusterLook.objects.filter(pk=row.pk).update(looked_at=now, **found)
        elif now - row.looked_at > _NOTED:
            with quietly():
                ClusterLook.objects.filter(pk=row.pk).update(looked_at=now)
    return changed or told or counted


def look_failed(*, environment_id: int, source: str, error: str) -> None:
    """Record why the cluster could not be looked at. What was seen stays."""
    if ClusterLook.objects.filter(environment=environment_id, trouble=[error]).exists():
        return
    with transaction.atomic():
        environment = ServerEnvironment.objects.select_for_update().filter(pk=environment_id).first()
        if environment is not None and environment.source == source:
            told = {"trouble": [error]}
            first = {**told, "looked_at": environment.created_at}
            ClusterLook.objects.update_or_create(environment=environment, defaults=told, create_defaults=first)


def look_forget(environment: ServerEnvironment) -> None:
    """Forget what was seen of an environment, as when its servers are found elsewhere from now on."""
    ClusterLook.objects.filter(environment=environment).delete()
    environment.replica_counts.all().delete()
    environment.replica_events.all().delete()


def _keep_changes(environment: ServerEnvironment, changes: Iterable[Change]) -> bool:
    oldest = timezone.now() - KEPT
    by_uid = {one.uid: one for one in changes if one.at > oldest}
    known = {row.uid: row for row in environment.replica_events.filter(uid__in=by_uid)}
    new = [one for one in by_uid.values() if one.uid not in known]
    later = [
        one for uid, one in by_uid.items() if uid in known and one.kind == known[uid].kind and one.at > known[uid].at
    ]
    for one in later:  # the cluster tells of it again, as of a pod that finds no node
        environment.replica_events.filter(uid=one.uid).update(at=one.at, said=one.said)
    fields = ("uid", "at", "kind", "reason", "about", "said", "bad")
    rows = [ReplicaEvent(environment=environment, **{name: getattr(one, name) for name in fields}) for one in new]
    if rows:
        ReplicaEvent.objects.bulk_create(rows, ignore_conflicts=True)
        _forget(environment.replica_events.all())
    return bool(new or later)


def _keep_count(environment: ServerEnvironment, look: Look) -> bool:
    """Keep the number of replicas, if it differs from the last one."""
    known = [one for one in look.workloads if one["wanted"] is not None]
    if not known and not look.pods:  # nothing could be read, or there is nothing yet
        return False
    wanted = sum(one["wanted"] or 0 for one in known) if known else sum(one["word"] != "unloading" for one in look.pods)
    ready = sum(one["ready"] or 0 for one in known) if known else sum(one["ready"] for one in look.pods)
    wanted, ready = min(wanted, _MOST_REPLICAS), min(ready, _MOST_REPLICAS)
    last = environment.replica_counts.first()
    if last is not None and (last.wanted, last.ready) == (wanted, ready):
        return False
    environment.replica_counts.create(at=timezone.now(), wanted=wanted, ready=ready)
    _forget(environment.replica_counts.all())
    return True


def _forget(rows: "QuerySet[ReplicaCount] | QuerySet[ReplicaEvent]") -> None:
    """Remove what is older than KEPT, and what is more than MOST_KEPT."""
    rows.filter(at__lt=timezone.now() - KEPT).delete()
    surplus = list(rows.values_list("pk", flat=True)[MOST_KEPT:])
    if surplus:
        rows.filter(pk__in=surplus).delete()


def replicas_set(
    *, environment: ServerEnvironment, replicas: int, actor: Actor, seen: int | None = None
) -> ServerEnvironment:
    """Set the replicas of the Deployment or StatefulSet of an environment, within the bounds that an administrator gave.

    seen: the number that the person saw; another one by now is not overwritten. Raises Forbidden, Invalid, NotFound,
    Unavailable; Conflict if nobody may set them, an autoscaler or a maker of the workload would undo it, or somebody else was
    faster.
    """
    require(actor, Right.OPERATE)
    if restored_from():
        raise Conflict(
            "this installation was restored from a backup, and controls nothing until manage.py accept control"
        )
    workloads = last_workloads(environment)
    if said := refusal(environment, workloads, []):
        raise Conflict(said)
    least, most = environment.replicas_min, environment.replicas_max
    if not least <= replicas <= most:
        raise Invalid.at(
            "replicas", f"{environment.name} has from {least} to {most} replicas, so it cannot have {replicas}"
        )
    workload = workloads[0]
    about = f"{workload['kind']} {workload['name']}"
    before, uid = async_to_sync(_scale)(environment, workload, replicas, seen)
    if before == replicas:
        return environment
    said = f"{about} of {environment.name} was set from {before} to {replicas} replicas"
    with transaction.atomic():
        audit_record(
            actor=actor,
            action="environment.scale",
            summary=f"Set {about} of {environment.name} from {before} to {replicas} replicas",
            before={"replicas": before},
            after={"replicas": replicas},
        )
        # A watcher may have seen it before, without the name of the person.
        told = {"at": timezone.now(), "kind": "person", "about": about, "said": f"{said} by {actor.name}"[:500]}
        ReplicaEvent.objects.update_or_create(environment=environment, uid=uid, defaults=told)
    return environment


async def _scale(
    environment: ServerEnvironment, workload: WorkloadRow, replicas: int, seen: int | None
) -> tuple[int, str]:
    """Set the replicas, and return how many there were, and a uid for the event."""
    kind, name = workload["kind"], workload["name"]
    async with cluster_of(environment) as cluster:
        fresh = await workload_of(cluster, kind, name)
        if said := refusal(environment, [fresh], await autoscalers_of(cluster)):
            raise Conflict(said)
        part = Kind("apps", "v1", f"{WORKLOADS[kind].resource}/scale")
        scale: Scale = await cluster.read(part, Scale, name)
        before = scale["spec"].get("replicas", 0)
        if seen is not None and before != seen:
            raise Conflict(f"{kind} {name} has {before} replicas by now, not {seen}: look at it, and try again")
        if before != replicas:
            scale["spec"]["replicas"] = replicas
            await cluster.replace(part, Scale, name, scale)
    return before, set_uid(fresh, 1)
