"""Plans the load of a model: the wanted release, and the last good ones while the wanted one is not ready."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from django.db import transaction

from dashboard.models import Model, ModelSync, Release, ReleaseCheck, ReleaseSpan, Server
from dashboard.releases.overrides import override_of, wanted_override
from dashboard.releases.selectors import last_good, newest_release, same_content
from dashboard.releases.storage import on_disk, write_config
from dashboard.shared.choices import CheckState

_CANDIDATES = 3  # the most good releases that are tried


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The releases of a model to load, and their order.

    wanted: the wanted release, or None if the model never had one. override: the configuration that its load sends; ""
    for the folder's own. good: the last good releases, to be loaded if no version of the model serves. good_first: whether they
    are loaded before the wanted release, because the model stopped with its server and the wanted release has not passed there.
    passed: whether the wanted release has passed on this server, so that it needs no golden requests after a restart.
    """

    wanted: Release | None
    override: str
    good: list[Release]
    good_first: bool
    passed: bool


class Ask(NamedTuple):
    """A load that is to be planned. serves: whether any version of the model serves on the server. pinned: the id of the
    release that is wanted there, None for the newest."""

    model_id: int
    server: Server
    serves: bool
    pinned: int | None = None


def load_plans(asks: Sequence[Ask]) -> list[LoadPlan | None]:
    """Return the plan of each load, or None if its model was deleted meanwhile. What loads of a model share is read once."""
    models = Model.objects.in_bulk({ask.model_id for ask in asks})
    newest = {pk: newest_release(model) for pk, model in models.items()}
    pins = {(ask.model_id, ask.pinned) for ask in asks if ask.model_id in models}
    wanted = {(pk, pinned): found for pk, pinned in pins if (found := _pinned(newest[pk], pinned)) is not None}
    overrides = {
        (pk, pinned): wanted_override(release) if release == newest[pk] else override_of(release)
        for (pk, pinned), release in wanted.items()
    }
    there = {"server__in": {ask.server.pk for ask in asks}}
    checks = ReleaseCheck.objects.filter(release__in={one.begun for one in wanted.values()}, state=CheckState.PASSED)
    passed = set(checks.filter(**there).values_list("server", "release"))
    # An unload would have removed the row's release, so the model stopped with the server.
    rows = ModelSync.objects.filter(model__in=models, release__isnull=False)
    went_away = set(rows.filter(**there).values_list("server", "model"))
    good = _good_ones([ask for ask in asks if not ask.serves and (ask.model_id, ask.pinned) in wanted], models)
    plans: list[LoadPlan | None] = []
    for ask in asks:
        release, place = wanted.get((ask.model_id, ask.pinned)), (ask.server.pk, ask.model_id)
        if release is None:
            plans.append(LoadPlan(None, "", [], False, False) if ask.model_id in models else None)
            continue
        before = () if ask.serves else good.get(place, ())
        others = [one for one in before if not same_content(one, release)][:_CANDIDATES]
        has_passed = (ask.server.pk, release.begun.pk) in passed
        first = bool(others) and place in went_away and not has_passed
        plans.append(LoadPlan(release, overrides[ask.model_id, ask.pinned], others, first, has_passed))
    return plans


def _good_ones(asks: Sequence[Ask], models: Mapping[int, Model]) -> dict[tuple[int, int], list[Release]]:
    """Return the last good releases by server and model. For a server that has served nothing of it yet, the releases that the
    bundled server served count."""
    if not asks:
        return {}
    spans = ReleaseSpan.objects.filter(server__in={ask.server.pk for ask in asks}, model__in=models).order_by()
    known = set(spans.values_list("server", "model").distinct())
    common = cache(lambda pk: last_good(models[pk]))
    return {
        place: ((place in known and last_good(models[ask.model_id], ask.server)) or common(ask.model_id))
        for ask in asks
        for place in [(ask.server.pk, ask.model_id)]
    }


def _pinned(newest: Release | None, pinned: int | None) -> Release | None:
    """Return the pinned release with its model, else the newest. The newest text of a pinned release counts as it."""
    if newest is None or pinned in (None, newest.pk, newest.begun.pk):
        return newest
    return Release.objects.select_related("model", "continues").filter(pk=pinned).first() or newest


def needs_another_load(*, model_id: int, loading: Release | None, pinned: int | None = None) -> bool:
    """Return whether the wanted release needs a separate load while a load for an earlier release is under way.

    It needs none if the versions stay and the change needs no reload, such as new aliases or an added version. The next load
    after the present one applies such a change. A new request for the same release needs another load.
    """
    model = Model.objects.filter(pk=model_id).first()
    wanted = _pinned(newest_release(model), pinned) if model else None
    if (
        wanted is None
        or loading is None
        or wanted.pk == loading.pk
        or not set(loading.versions) <= set(wanted.versions)
    ):
        return True
    return wanted.document.effect_after(loading.document) == "reload"


def folders_renew(loads: Collection[tuple[int, Server]]) -> None:
    """Write the text of the wanted release again if its stamp is missing or wrong, or if a server serves an override.

    loads: the id of a model, and the server that is to load it. A server reports its release by the stamp. It keeps an
    override until the model's files change, as Triton does. A text that somebody changed by hand stays. The model is locked
    only if there is something to write: the holder of the lock may hang while a restarted server waits for this function.
    """
    models = {model for model, _ in loads}
    rows = ModelSync.objects.filter(server__in={server.pk for _, server in loads}, model__in=models, override=True)
    overridden = set(rows.values_list("server", "model"))
    for pk in models:
        _renew(pk, any((server.pk, pk) in overridden for model, server in loads if model == pk))


def _renew(model_id: int, overridden: bool) -> None:
    if not _to_renew(Model.objects.filter(pk=model_id).first(), overridden):
        return
    with transaction.atomic():
        model = Model.objects.select_for_update().filter(pk=model_id).first()
        newest = _to_renew(model, overridden)
        if model is not None and newest is not None:
            write_config(model, newest)


def _to_renew(model: Model | None, overridden: bool) -> Release | None:
    """Return the newest release if its text must be written again, else None."""
    newest = newest_release(model) if model is not None else None
    if model is None or newest is None:
        return None
    found = on_disk(model.name)
    same = found.document.same_text(newest.document)
    return newest if same and (overridden or (found.text or "") != newest.text) else None
