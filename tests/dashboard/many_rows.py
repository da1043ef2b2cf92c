"""Fills the database with very many rows, as months of use would: for tests that count queries, and for benchmarks."""

import hashlib
import itertools
import math
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db.models import Max
from django.utils import timezone

from dashboard.metrics.samples import Sample, encode
from dashboard.models import (
    ApiToken,
    AuditEntry,
    Job,
    MetricSample,
    Model,
    ModelState,
    ModelSync,
    Release,
    ReleaseCheck,
    ReleaseSpan,
    Rollout,
    RolloutFigures,
    RolloutSample,
    Server,
    ServerEvent,
    ServerState,
    Version,
)
from dashboard.models.release import CheckStep
from dashboard.models.rollout import Latency
from dashboard.rollouts.figures import mismatches_store, sums_of
from dashboard.rollouts.plan import default_plan
from tests.dashboard.feeds import PROCESS, usage
from tests.dashboard.rollouts.reports import mismatch, rollout_report
from tests.support.model_pages import model_name

BATCH = 500
STEPS_EACH = 4  # releases of a rollout
CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
SIGNATURE = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}
STEPS: list[CheckStep] = [{"step": "load", "ms": 12.5}, {"step": "warm", "ms": 3.0}, {"step": "switch", "ms": 0.2}]


def add_models(server: Server, numbers: range, *, versions: int = 1, releases: int = 1) -> None:
    """Models that are ready, each with so many versions and releases; the newest release serves the newest version."""
    names = [model_name(number) for number in numbers]
    models = Model.objects.bulk_create(
        [
            Model(name=name, desired_state="loaded", generation=1, last_number=versions, tags=[name[-1]])
            for name in names
        ]
    )
    _add_releases(server, models, versions, releases)
    ModelSync.objects.bulk_create([ModelSync(server=server, model=model, applied_generation=1) for model in models])
    states = [ModelState(server=server, model_name=name, version=versions, state="READY") for name in names]
    ModelState.objects.bulk_create(states, batch_size=BATCH)
    for name in names:
        folder = Path(settings.MODEL_REPOSITORY) / name
        folder.mkdir()
        (folder / "config.pbtxt").write_text(CONFIG)


def deepen(server: Server, model: Model, *, versions: int, releases: int) -> None:
    """Give a model so many versions and releases more; each release served until the next one did."""
    newest = model.versions.aggregate(newest=Max("number"))["newest"] or 0
    first, begin = model.releases.count() + 1, timezone.now() - timedelta(minutes=releases)
    ReleaseSpan.objects.filter(model=model, ended_at=None).update(ended_at=begin)
    _add_releases(server, [model], versions, releases, newest, first)
    ModelState.objects.filter(model_name=model.name).update(version=newest + versions)


def _add_releases(
    server: Server, models: list[Model], versions: int, releases: int, newest: int = 0, first: int = 1
) -> None:
    """The one place that makes rows of releases. newest: the number of the last version that the models have. first: the number
    of the first new release."""
    begin = timezone.now() - timedelta(minutes=releases)
    rows = [
        Version(
            model=model, number=newest + more, format="onnx", filename="model.onnx", signature=SIGNATURE, config=CONFIG
        )
        for model in models
        for more in range(1, versions + 1)
    ]
    Version.objects.bulk_create(rows, batch_size=BATCH)
    at = [begin + timedelta(minutes=place) for place in range(releases + 1)]
    made = Release.objects.bulk_create(
        [
            Release(
                model=model,
                number=first + place,
                text=CONFIG,
                sha256=hashlib.sha256(CONFIG.encode()).hexdigest(),
                versions=[newest + versions - (releases - 1 - place) % versions],
                kind="promote",
                summary="Made live",
                created_by_name="olga",
                created_at=at[place],
            )
            for model in models
            for place in range(releases)
        ],
        batch_size=BATCH,
    )
    spans = [
        ReleaseSpan(
            release=one,
            model=one.model,
            server=server,
            started_at=at[place],
            ended_at=at[place + 1] if place < releases - 1 else None,
        )
        for one, place in zip(made, itertools.cycle(range(releases)), strict=False)
    ]
    ReleaseSpan.objects.bulk_create(spans, batch_size=BATCH)
    passed = [
        ReleaseCheck(release=one, server=server, state="passed", steps=STEPS, started_at=start, ended_at=start)
        for one, start in zip(made, itertools.cycle(at[:-1]), strict=False)
    ]
    ReleaseCheck.objects.bulk_create(passed, batch_size=BATCH)


def add_servers(like: Server, count: int) -> list[Server]:
    """Servers that serve the same as another one, and did not answer for a second a minute ago."""
    at = {"http_url": "http://x", "grpc_url": "x", "metrics_url": "http://x", "environment": like.environment}
    added = [Server.objects.create(name=f"more-{number}", **at) for number in range(count)]
    states, syncs = like.model_states.all(), ModelSync.objects.filter(server=like)
    now = timezone.now()
    for server in added:
        ServerState.objects.create(server=server, state="ready")
        for rows in (states, syncs):
            copies = list(rows)
            for row in copies:
                row.pk, row.server = None, server
            rows.model.objects.bulk_create(copies, batch_size=BATCH)
        for kind, ago in (("unreachable", 61), ("ready", 60)):
            ServerEvent.objects.create(server=server, kind=kind, at=now - timedelta(seconds=ago))
    return added


def add_people(numbers: range) -> None:
    """People with a right each, and two tokens."""
    users = get_user_model().objects
    people = users.bulk_create([users.model(username=f"person_{number:03}") for number in numbers])
    rights = Permission.objects.filter(codename__in=("operate", "upload_data", "upload_code"))
    for person, right in zip(people, itertools.cycle(rights), strict=False):
        person.user_permissions.add(right)
    tokens = [
        ApiToken(
            user=person, name=f"script {number}", prefix="abcd", hash=f"{person.pk:060}{number:04}", rights=["read"]
        )
        for person in people
        for number in range(2)
    ]
    ApiToken.objects.bulk_create(tokens)


def add_history(server: Server, numbers: range, *, each: int) -> None:
    """What people did with each of the models, their jobs, and what happened to the server."""
    now = timezone.now()
    models = list(Model.objects.filter(name__in=[model_name(number) for number in numbers]))
    for row in range(each):
        at = now - timedelta(minutes=5 * row + 1)
        AuditEntry.objects.bulk_create(
            [
                AuditEntry(
                    at=at,
                    actor_name="olga",
                    action="config.apply",
                    model=model,
                    model_name=model.name,
                    summary="Changed the queue delay",
                    before={"delay": row},
                    after={"delay": row + 1},
                )
                for model in models
            ]
        )
    jobs = [
        Job(
            kind="publish",
            title=f"Publish {model.name}",
            state="succeeded",
            model=model,
            started_at=now,
            finished_at=now,
        )
        for model in models
    ]
    Job.objects.bulk_create(jobs)
    events = [
        ServerEvent(server=server, kind="model_loaded", model_name=model.name, message=f"Loaded {model.name}.", at=now)
        for model in models
    ]
    ServerEvent.objects.bulk_create(events)


def add_samples(server: Server, names: list[str], now: float) -> None:
    """A quarter of an hour of metrics, by ten seconds and by one second."""
    MetricSample.objects.bulk_create(_samples(server, names, int(now)), batch_size=BATCH, ignore_conflicts=True)


def _samples(server: Server, names: list[str], now: int) -> Iterator[MetricSample]:
    for resolution, span in ((1, 60), (10, 15 * 60)):
        for at in range((now - span) // resolution * resolution, now, resolution):
            for place, name in enumerate(["", *names]):
                requests = round((20 + place % 7) * resolution * (1.5 + math.sin(at / 90)))
                data = encode(Sample(usage(requests, 900 + 10 * place).pack(), None if name else PROCESS))
                yield MetricSample(
                    server=server, model_name=name, version=1 if name else 0, resolution=resolution, at=at, data=data
                )


def add_rollouts(server: Server, numbers: range, *, each: int) -> None:
    """Rollouts of models with two versions or more: so many that were rolled back, and one that is under way, with figures.

    The newest releases of the model are steps of theirs, STEPS_EACH of each.
    """
    for number in numbers:
        model = Model.objects.get(name=model_name(number))
        release = model.releases.order_by("-number").first()
        rows = [
            Rollout(
                model=model,
                name=f"r-{number}-{place}",
                kind="canary",
                state="rolled_back" if place < each else "running",
                stable=1,
                candidate=2,
                plan=default_plan("canary"),
                reason="5 % of its answers were errors." if place < each else "",
                ended_at=timezone.now() if place < each else None,
                step_release=release,
                base=release,
            )
            for place in range(each + 1)
        ]
        *_, running = Rollout.objects.bulk_create(rows, batch_size=BATCH)
        steps = list(model.releases.order_by("-number")[: (each + 1) * STEPS_EACH])
        for place, step in enumerate(steps[:-1]):
            rollout = rows[-1 - place // STEPS_EACH]
            step.rollout, step.traffic = rollout, {"1": 95.0, "2": 5.0}
            if place > 0:  # of the newest the server has told which versions are loaded
                step.versions = [1, 2]
        Release.objects.bulk_update(steps, ["rollout", "traffic", "versions"])
        word = rollout_report(running, stable=900, candidate=100, errors=1)
        RolloutFigures.objects.create(rollout=running, server=server, report=word, every_s=10)
        sums = sums_of(RolloutFigures.objects.get(rollout=running))
        RolloutSample.objects.bulk_create(
            RolloutSample(rollout=running, server=server, at=10 * at, data=sums) for at in range(each)
        )
        mismatches_store(rollout=running, server=server, rows=[mismatch(at, score=at) for at in range(each)])


def add_rollout_history(server: Server, model: Model, *, readings: int) -> None:
    """So many readings of the rollout under way, with latencies all over."""
    rollout = Rollout.objects.get(model=model, state="running")
    row = RolloutFigures.objects.get(rollout=rollout, server=server)
    counts = {str(bucket): bucket for bucket in range(40, 240)}
    spread: Latency = {"total": sum(counts.values()), "sum_ns": 10**12, "counts": counts}
    for arm in row.report["arms"].values():
        arm.update(requests=spread["total"], latency=spread)
    row.save()
    RolloutSample.objects.filter(rollout=rollout).delete()
    last, sums = int(time.time()), sums_of(row)
    RolloutSample.objects.bulk_create(
        [RolloutSample(rollout=rollout, server=server, at=last - 10 * place, data=sums) for place in range(readings)],
        batch_size=BATCH,
    )
