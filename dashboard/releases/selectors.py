"""Reads releases: the wanted one, the serving one, the release to which *go back* returns, and the state of each release."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from django.db.models import BigIntegerField, Exists, F, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from dashboard.models import Model, Release, ReleaseCheck, ReleaseSpan, Server, Version
from dashboard.releases.life import Facts, state_of
from dashboard.releases.rollout_states import UNDER_WAY, taken_out, unfinished
from dashboard.servers.selectors import of_production
from dashboard.servers.wanted import should_load, with_production
from dashboard.shared.choices import DesiredState, ReleaseState, VersionState
from dashboard.shared.exceptions import NotFound
from repository.config.document import NOTHING, Document

_WANTED = ("everything", "wished", "pinned")
_GONE: dict[str, Any] = dict.fromkeys(("newest", "desired_state", *_WANTED))  # a model that was deleted meanwhile
_CANDIDATES = 20
_LOOKED_BACK = 500  # the most releases that `way_back` searches


@dataclass(frozen=True, slots=True)
class ReleaseLife:
    """A release with the facts of its life on one server."""

    release: Release
    state: ReleaseState
    spans: list[ReleaseSpan] = field(default_factory=list)  # the newest first
    check: ReleaseCheck | None = None

    @property
    def error(self) -> str:
        """The reason of its failure; "" if it has not failed."""
        return self.check.error if self.check is not None and self.state == ReleaseState.FAILED else ""

    @property
    def served(self) -> bool:
        return bool(self.spans)

    @property
    def serving_since(self) -> datetime | None:
        return self.spans[0].started_at if self.state == ReleaseState.SERVING else None


def reporting_server(server: Server | None = None) -> Server | Subquery:
    """Return the server whose reports count, in a form for filters: by default the first of production."""
    return server or Subquery(Server.objects.filter(of_production()).values("pk")[:1])


def releases(model: Model) -> QuerySet[Release]:
    """Return a model's releases, the newest first; the newest one is wanted while the model should be loaded."""
    return texts(model).filter(continues=None)


def texts(model: Model) -> QuerySet[Release]:
    """Return every text that config.pbtxt of a model has had, the newest first: its releases, and further texts of them."""
    return model.releases.select_related("created_by", "returns_to", "rollout", "continues")


def release_get(model: Model, number: int) -> Release:
    """Return a release, or a further text of one. Raises NotFound if the model has no release of that number."""
    try:
        return texts(model).get(number=number)
    except Release.DoesNotExist:
        raise NotFound(f"model '{model.name}' has no release {number}") from None


def newest_release(model: Model) -> Release | None:
    """Return the row whose text is on disk: the newest release, or its newest further text. The model need not be loaded."""
    return texts(model).first()


def wanted_release(model: Model) -> Release | None:
    """Return the release that should serve, or None for a model that should not be loaded."""
    newest = newest_release(model) if model.desired_state == DesiredState.LOADED else None
    return newest.begun if newest is not None else None


def wanted_versions(model: Model) -> list[int]:
    """Return the numbers of the versions that the model should serve."""
    wanted = wanted_release(model)
    return wanted.versions if wanted else []


def versions_wanted(named: Collection[int]) -> tuple[dict[str, list[int]], dict[int, list[int]]]:
    """Return `wanted_versions` of every loaded model by its name, and the versions of the releases of these ids."""
    newer = Release.objects.filter(model=OuterRef("model"), continues=None, number__gt=OuterRef("number"))
    newest = Release.objects.filter(~Exists(newer), continues=None, model__desired_state=DesiredState.LOADED).order_by()
    of_named = Release.objects.filter(pk__in=named).values_list("pk", "versions") if named else ()
    return dict(newest.values_list("model__name", "versions")), dict(of_named)


def current_document(model: Model) -> Document:
    """Return the configuration of the newest release; an empty one if there is none."""
    newest = model.releases.first()
    return newest.document if newest else NOTHING


def serving_release(model: Model, server: Server | None = None) -> Release | None:
    """Return the release that serves now on a server, by default the bundled one."""
    span = _spans(model, server).filter(ended_at=None).first()
    return span.release if span else None


def last_good(model: Model, server: Server | None = None) -> list[Release]:
    """Return the releases that have served and whose versions are still published, each once, the last one first."""
    return list(islice(_good(model, server), _CANDIDATES))


def way_back(model: Model, server: Server | None = None) -> Release | None:
    """Return the release to which *go back* returns: the last good one that differs from the wanted one, or None.

    It serves in place of a wanted release that has failed. A release is left out if guardrails have since taken out the version
    that answers its requests.
    """
    newest = model.releases.first()
    if newest is None:
        return None
    out = taken_out(model)
    others = (one for one in _good(model, server) if not same_content(one, newest))
    return next((one for one in others if one.number > out.get(one.answers, 0)), None)


def same_content(one: Release, other: Release) -> bool:
    """Return whether clients notice no difference between two releases: the same versions, served in the same way."""
    if one.begun.pk == other.begun.pk:
        return True
    return one.versions == other.versions and one.document.same_meaning(other.document, one.versions)


def releases_begun(
    *, servers: Sequence[Server], since: datetime, until: datetime, model_name: str = ""
) -> QuerySet[ReleaseSpan]:
    """Return the spans in which a model began to serve another release than before on one of the servers, the newest first.
    model_name: "" for all.

    Spans in which the same release serves again after a restart of its server are left out.
    """
    earlier = ReleaseSpan.objects.filter(
        model=OuterRef("model"), server=OuterRef("server"), started_at__lt=OuterRef("started_at")
    ).order_by("-started_at", "-id")
    spans = ReleaseSpan.objects.filter(server__in=servers, started_at__gte=since, started_at__lte=until)
    if model_name:
        spans = spans.filter(model__name=model_name)
    spans = spans.annotate(before=Coalesce(Subquery(earlier.values("release")[:1]), 0, output_field=BigIntegerField()))
    spans = spans.exclude(before=F("release"))
    spans = spans.select_related("release", "model").defer("release__text", "model__fingerprint")
    return spans.order_by("-started_at", "-id")


def releases_served(model: Model, count: int) -> list[ReleaseSpan]:
    """Return the last span of each release that served on the bundled server, the newest first, at most `count`."""
    newest: dict[int, ReleaseSpan] = {}
    for span in _spans(model, None)[: 4 * count]:
        newest.setdefault(span.release_id, span)
    return list(newest.values())[:count]


def lives_of(rows: Iterable[Release], server: Server | None = None) -> list[ReleaseLife]:
    """Return releases with the facts of their lives, in the same order, in a fixed number of queries.

    A further text of a release has the life of that release.
    """
    found, reporter = list(rows), reporting_server(server)
    begun = {row.pk: row.continues_id or row.pk for row in found}
    newest_begun = Max("releases__number", filter=Q(releases__continues=None))
    models = Model.objects.filter(pk__in={row.model_id for row in found}).annotate(newest=newest_begun)
    known = {one["pk"]: one for one in with_production(models).values("pk", "newest", "desired_state", *_WANTED)}
    spans: dict[int, list[ReleaseSpan]] = defaultdict(list)
    for span in ReleaseSpan.objects.filter(release__in=begun.values(), server=reporter):
        spans[span.release_id].append(span)
    checks = {row.release_id: row for row in ReleaseCheck.objects.filter(release__in=begun.values(), server=reporter)}
    lives = []
    for row in found:
        own, check = spans[begun[row.pk]], checks.get(begun[row.pk])
        model = known.get(row.model_id, _GONE)
        newest, desired = model["newest"] == row.begun.number, model["desired_state"]
        there = should_load(desired=desired, everything=model["everything"], wished=model["wished"])
        facts = Facts(
            newest=newest,
            loaded=desired == DesiredState.LOADED,
            wanted=there and (model["pinned"] == begun[row.pk] if model["pinned"] else newest),
            serves=any(span.ended_at is None for span in own),
            served=bool(own),
            check=check,
        )
        lives.append(ReleaseLife(row, state_of(facts), own, check))
    return lives


def protected_versions(model: Model, back: Release | None = None) -> dict[int, str]:
    """Return the versions that cannot be archived, each with a sentence that says why.

    back: the release to which *go back* returns, if the caller knows it.
    """
    why: dict[int, str] = {}
    for number, sentence in _protected(model, back or way_back(model)):
        why.setdefault(number, sentence)
    return why


def _protected(model: Model, back: Release | None) -> Iterable[tuple[int, str]]:
    """Yield versions with a reason each, the strongest reason first."""
    name, newest = model.name, newest_release(model)
    yield from _needed_by_rollout(model)
    spans = ReleaseSpan.objects.filter(model=model, ended_at=None).select_related("release")
    for span in spans:
        for number in span.release.versions:
            yield number, f"version {number} of '{name}' is live; make another one live first"
    if newest is not None:
        for number in newest.versions:
            yield (
                number,
                f"version {number} of '{name}' is wanted by release {newest.begun.number}; make another one live first",
            )
        for alias, number in sorted(newest.aliases.items()):
            yield number, f"version {number} of '{name}' is called '{alias}'; move that alias first"
    if back is not None:
        for number in back.versions:
            yield (
                number,
                f"version {number} of '{name}' is needed to go back to release {back.number}",
            )


def _needed_by_rollout(model: Model) -> Iterable[tuple[int, str]]:
    rollout = unfinished(model)
    if rollout is None:
        return
    which = f"of rollout {rollout.name}"
    if rollout.state in UNDER_WAY:
        for arm, word in ((rollout.stable, "stable one"), (rollout.candidate, "candidate")):
            if isinstance(arm, int):
                yield arm, f"version {arm} of '{model.name}' is the {word} {which}; promote or abort the rollout first"
    elif isinstance(rollout.stable, int):
        yield rollout.stable, f"version {rollout.stable} of '{model.name}' is held to roll back to; unload it first"
    for number in rollout.base.versions if rollout.base else []:
        yield number, f"version {number} of '{model.name}' is needed to go back from rollout {rollout.name}"


def fitting_document(version: Version, server: Server | None = None) -> Document:
    """Return the configuration with which a version served last, else the one proposed for its file; an empty one if neither is
    known."""
    served = (one for one in _served(version.model, server) if version.number in one.versions)
    last = next(served, None)
    return last.document.without_traffic() if last is not None else Document.read(version.config)


def _good(model: Model, server: Server | None) -> Iterator[Release]:
    """Yield the releases that can serve again. Steps of a rollout are left out, but not the release before the rollout."""
    there = set(model.published_numbers())
    served = (one for one in _served(model, server) if not (one.rollout_id and one.traffic))
    return (one for one in served if one.versions and set(one.versions) <= there)


def _served(model: Model, server: Server | None) -> Iterator[Release]:
    """Yield the releases of a model that have served on a server (by default the bundled one), each once, the last one first.
    The order of writing the spans counts, because a clock may have been set back."""
    spans = (
        ReleaseSpan.objects.filter(release=OuterRef("pk"), server=reporting_server(server)).order_by().values("release")
    )
    rows = Release.objects.filter(model=model).annotate(last=Subquery(spans.values(last=Max("pk"))))
    yield from rows.filter(last__isnull=False).order_by("-last", "-number")[:_LOOKED_BACK].iterator(chunk_size=10)


def _spans(model: Model, server: Server | None) -> QuerySet[ReleaseSpan]:
    """Return the spans of a model on a server, by default the bundled one, the last first."""
    return ReleaseSpan.objects.filter(model=model, server=reporting_server(server)).select_related("release")


def missing_versions(release: Release) -> list[str]:
    """Return a sentence for each version that a release needs and that is not in the repository."""
    states = dict(release.model.versions.filter(number__in=release.versions).values_list("number", "state"))
    hints = {
        VersionState.ARCHIVED: "is archived; restore it first",
        VersionState.MOVING: "is being moved; wait for that",
    }
    return [
        f"version {number} {hints.get(VersionState(states[number])) if number in states else 'is not there any more'}"
        for number in release.versions
        if states.get(number) != VersionState.PUBLISHED
    ]
