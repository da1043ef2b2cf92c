"""Reads about models, for pages and REST."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import OuterRef, QuerySet, Subquery

from dashboard.catalog.spread import Report, Reports, Spread
from dashboard.models import Model, Release, ReleaseSpan, Rollout, Version
from dashboard.releases.selectors import reporting_server
from dashboard.releases.storage import managed_repository
from dashboard.servers.wanted import InProduction, should_load, with_production
from dashboard.shared.changes import kept_while_unchanged
from dashboard.shared.choices import DesiredState, ModelStatus, VersionState
from dashboard.shared.exceptions import NotFound

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations


# States of models that need a person's attention, and states that end without an act of a person.
NEED_ATTENTION, CHANGING = ("failed", "degraded"), ("loading", "unloading")


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model in a list.

    state: ready, asleep (the next request loads it), loading, unloading, unloaded, failed or degraded. Degraded means that a
    wanted version is not ready, a load failed while older versions serve, or the model serves although it should not. Of
    several servers, each that answers must serve what it should.
    reason: why the state is degraded or failed. warning: a problem of a ready model, such as instances that run on the CPU
    because there is no GPU.
    """

    model: Model
    state: str
    reason: str
    wanted: Release | None  # the release that production should serve, without its text
    serving: Release | None  # the release that the bundled server reports as serving, without its text
    loaded_versions: list[int]  # versions that can answer now, on any server of production
    backend: str
    version_count: int
    latest_number: int | None
    spread: Spread  # on how many servers it serves what it should
    serving_since: datetime | None = None
    warning: str = ""
    held: Release | None = None  # the newest release, if the model is loaded and production wants another one or none
    ready_versions: frozenset[int] = frozenset()  # versions that are ready on any server of production
    archive_versions: dict[int, str] = field(
        default_factory=dict
    )  # version number -> the version that its archive states

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def instead(self) -> Release | None:
        """The release that serves in place of the wanted one, or None if the wanted one or nothing serves."""
        other = self.wanted is not None and self.serving is not None and self.wanted.pk != self.serving.pk
        return self.serving if other else None

    @property
    def rolling_out(self) -> bool:
        """True if the wanted release belongs to an unfinished rollout."""
        rollout = self.wanted.rollout if self.wanted is not None else None
        return rollout is not None and rollout.ended_at is None

    @property
    def rollout(self) -> Rollout | None:
        """The unfinished rollout of the serving release, or None."""
        rollout = self.serving.rollout if self.serving is not None else None
        return rollout if rollout is not None and rollout.ended_at is None else None

    @property
    def live_versions(self) -> list[int]:
        """The versions that answer clients now. The candidate of a shadow rollout is not live."""
        release = self.serving or self.wanted
        return release.without_shadow(self.loaded_versions) if release is not None else self.loaded_versions

    @property
    def wanted_versions(self) -> list[int]:
        """The versions that should answer clients, even if none serves."""
        return self.wanted.without_shadow(self.wanted.versions) if self.wanted else []

    @property
    def wanted_since(self) -> datetime | None:
        return self.wanted.created_at if self.wanted else None

    @property
    def wanted_by(self) -> str:
        return self.wanted.created_by_name if self.wanted else ""

    @property
    def needs_attention(self) -> bool:
        return self.state in NEED_ATTENTION

    @property
    def changing(self) -> bool:
        return self.state in CHANGING


class Standing(NamedTuple):
    """The fields by which lists of models are counted, filtered and sorted: few, because there may be many models.

    desired_state: that of production, which may want chosen models only. state, backend: as in ModelSummary. serves: whether a
    version answers now, even if the model is degraded or loads another version.
    """

    pk: int
    name: str
    tags: list[str]
    desired_state: str
    state: str
    backend: str
    serves: bool


def model_get(name: str) -> Model:
    """Return a model. Raises NotFound if there is no model of that name."""
    try:
        return Model.objects.select_related("created_by").get(name=name)
    except Model.DoesNotExist:
        raise NotFound(f"there is no model named '{name}'") from None


class _Listed(NamedTuple):
    """What changes only with models and releases. wanted: the versions of the release that production should serve."""

    pk: int
    name: str
    tags: list[str]
    desired: DesiredState
    wanted: list[int]
    backend: str


@kept_while_unchanged
def models_standing() -> tuple[Standing, ...]:
    """Return the Standing of every model, ordered by name."""
    told = Reports()
    found = []
    for one in _listed():
        states, spread = told.reports.get(one.name, []), told.spread(one.pk, one.name, one.wanted)
        state, _ = _judge(one.desired, one.wanted, states, told.errors.get(one.pk, ""), spread)
        serves = any(report.word == "ready" for report in states)
        found.append(Standing(one.pk, one.name, one.tags, one.desired, state, one.backend, serves))
    return tuple(found)


@kept_while_unchanged
def _listed() -> list[_Listed]:
    """Return every model, ordered by name. Kept apart from the servers' reports, which change more often."""
    columns = ("pk", "name", "tags", "desired_state", "newest_release", "pinned", "everything", "wished")
    rows = list(_with_parts(Model.objects.all()).values_list(*columns))
    named = {pk for row in rows if (pk := row[5] or row[4])}
    wanted = dict(Release.objects.filter(pk__in=named).values_list("pk", "versions"))
    backends = _newest_formats()
    return [
        _Listed(
            pk,
            name,
            tags,
            _desired(desired_state, everything, wished),
            wanted.get(pinned or newest or 0, []),
            backends.get(pk, ""),
        )
        for pk, name, tags, desired_state, newest, pinned, everything, wished in rows
    ]


def summaries_of(models: Iterable[Standing]) -> list[ModelSummary]:
    """Return the summaries of these models in this order, without models that were deleted meanwhile."""
    wanted = [model.pk for model in models]
    found = {row.model.pk: row for row in _summaries(_with_parts(Model.objects.filter(pk__in=wanted)))}
    return [found[pk] for pk in wanted if pk in found]


def model_summary(model: Model) -> ModelSummary:
    return _summaries(_with_parts(Model.objects.filter(pk=model.pk)))[0]


def versions(model: Model) -> QuerySet[Version]:
    """Return a model's versions, archived ones too, the newest first."""
    return model.versions.select_related("created_by", "upload")


def version_get(model: Model, number: int) -> Version:
    """Return a version. Raises NotFound if the model has no version of that number."""
    try:
        return model.versions.select_related("model").get(number=number)
    except Version.DoesNotExist:
        raise NotFound(f"model '{model.name}' has no version {number}") from None


class _Newest(InProduction):
    newest_release: int | None


def _with_parts(models: QuerySet[Model]) -> "QuerySet[WithAnnotations[Model, _Newest]]":
    newest = Release.objects.filter(model=OuterRef("pk"), continues=None).order_by("-number")
    # A fingerprint is long, and no list shows it.
    return with_production(models.defer("fingerprint")).annotate(newest_release=Subquery(newest.values("pk")[:1]))


def _published(models: Iterable[Model]) -> dict[int, list[tuple[int, str]]]:
    """Return the numbers and formats of published versions, the newest first, by the model's id."""
    found = defaultdict(list)
    rows = Version.objects.filter(state=VersionState.PUBLISHED, model__in=list(models)).order_by("-number")
    for model, number, file_format in rows.values_list("model_id", "number", "format"):
        found[model].append((number, file_format))
    return found


def _newest_formats() -> dict[int, str]:
    """Return the format of each model's newest published version, by the model's id."""
    rows = Version.objects.filter(state=VersionState.PUBLISHED).order_by("number")
    return dict(rows.values_list("model_id", "format"))


def _summaries(models: "Iterable[WithAnnotations[Model, _Newest]]") -> list[ModelSummary]:
    rows = list(models)
    told, published = Reports(rows), _published(rows)
    releases = Release.objects.select_related("rollout__base").defer("text", "rollout__base__text")
    found = releases.in_bulk({pk for row in rows for pk in (row.newest_release, row.pinned) if pk})
    serving, archives = _serving(rows), _archive_versions(rows)
    return [
        _summary(
            row,
            _desired(row.desired_state, row.everything, row.wished),
            found.get(row.pinned or row.newest_release or 0),
            found.get(row.newest_release or 0),
            serving.get(row.pk),
            told,
            published[row.pk],
            archives[row.pk],
        )
        for row in rows
    ]


def _serving(models: Iterable[Model]) -> dict[int, ReleaseSpan]:
    """Return the open span of the release that the bundled server serves, by the model's id."""
    spans = ReleaseSpan.objects.filter(model__in=list(models), ended_at=None, server=reporting_server())
    spans = spans.select_related("release__rollout__base").defer("release__text", "release__rollout__base__text")
    return {span.model_id: span for span in spans}


def _desired(desired: str, everything: bool, wished: bool) -> DesiredState:
    """Return the desired state in production."""
    there = should_load(desired=desired, everything=everything, wished=wished)
    return DesiredState.LOADED if there else DesiredState.UNLOADED


def _summary(
    model: Model,
    desired: DesiredState,
    named: Release | None,
    newest: Release | None,
    serving: ReleaseSpan | None,
    told: Reports,
    published: list[tuple[int, str]],
    archive_versions: dict[int, str],
) -> ModelSummary:
    wanted = named if desired == DesiredState.LOADED else None
    states = told.reports.get(model.name, [])
    spread = told.spread(model.pk, model.name, wanted.versions) if wanted else Spread()
    state, reason = _judge(desired, wanted.versions if wanted else [], states, told.errors.get(model.pk, ""), spread)
    warnings = [row.reason for row in states if row.word == "ready" and row.reason]
    latest_number, backend = published[0] if published else (None, "")
    return ModelSummary(
        model=model,
        state=state,
        reason=reason,
        wanted=wanted,
        held=newest if model.desired_state == DesiredState.LOADED and newest != wanted else None,
        serving=serving.release if serving else None,
        serving_since=serving.started_at if serving else None,
        loaded_versions=sorted({row.version for row in states if row.word in ("ready", "asleep")}),
        backend=backend,
        version_count=len(published),
        latest_number=latest_number,
        spread=spread,
        warning=warnings[0] if state == "ready" and warnings else "",
        ready_versions=frozenset(row.version for row in states if row.word == "ready"),
        archive_versions=archive_versions,
    )


def _archive_versions(models: Iterable[Model]) -> dict[int, dict[int, str]]:
    """Return the archives' own versions by the model's id and the version's number."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    rows = Version.objects.filter(model__in=list(models), details__has_key="archive")
    for version in rows.only("model_id", "number", "details"):
        found[version.model_id][version.number] = version.archive_version
    return found


def _judge(desired: str, wanted: list[int], states: list[Report], error: str, spread: Spread) -> tuple[str, str]:
    """Return the state and the reason of a ModelSummary, from the desired state and the servers' reports.

    error: the reason why `watch` could not load or unload the model.
    """
    reported = {state.state for state in states}
    if desired == DesiredState.UNLOADED:
        if error and ModelStatus.READY in reported:
            return "degraded", f"it is still loaded: {error}"
        leaving = reported & {ModelStatus.READY, ModelStatus.LOADING, ModelStatus.UNLOADING}
        return ("unloading" if leaving or any(state.word == "asleep" for state in states) else "unloaded"), ""
    ready = {state.version for state in states if state.word == "ready"}
    asleep = {state.version for state in states if state.word == "asleep"}
    if (
        ModelStatus.LOADING in reported and not error
    ):  # after an error the model stays failed during retries, until it is ready
        return "loading", ""
    everywhere = spread.serving == spread.servers
    if wanted and set(wanted) <= ready | asleep and everywhere and not error:
        return ("ready" if set(wanted) & ready else "asleep"), ""
    failed = (s for s in states if s.word == "failed" and (s.version in wanted or not wanted))
    reason = error or next((s.reason for s in failed if s.reason), "")
    if ready and reason:
        return "degraded", reason
    return ("failed", reason) if reason else ("loading", "")


def unmanaged_models() -> list[str]:
    """Return the names of the repository's folders that have no row of Model."""
    known = set(Model.objects.values_list("name", flat=True))
    return [name for name in managed_repository().models() if name not in known]
