"""Plans the load of a model: the wanted release, and the last good ones while the wanted one is not ready."""

from dataclasses import dataclass

from django.db import transaction

from dashboard.models import Model, ModelSync, Release, ReleaseCheck, Server
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


def load_plan(*, model_id: int, server: Server, serves: bool, pinned: int | None = None) -> LoadPlan | None:
    """Return the plan, or None if the model was deleted meanwhile. serves: whether any version of it serves on the server.
    pinned: the id of the release that is wanted there, None for the newest."""
    model = Model.objects.filter(pk=model_id).first()
    if model is None:
        return None
    newest = newest_release(model)
    wanted = _pinned(newest, pinned)
    if wanted is None:
        return LoadPlan(None, "", [], False, False)
    # For a server that has served nothing yet, the releases that the bundled server served count.
    served = [] if serves else last_good(model, server) or last_good(model)
    good = [one for one in served if not same_content(one, wanted)][:_CANDIDATES]
    passed = ReleaseCheck.objects.filter(release=wanted.begun, server=server, state=CheckState.PASSED).exists()
    # An unload would have removed the row's release, so the model stopped with the server.
    went_away = ModelSync.objects.filter(server=server, model=model, release__isnull=False).exists()
    override = wanted_override(wanted) if wanted == newest else override_of(wanted)
    return LoadPlan(wanted, override, good, bool(good) and went_away and not passed, passed)


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


def folder_renew(*, model_id: int, server: Server) -> None:
    """Write the text of the wanted release again if its stamp is missing or wrong, or if a server serves an override.

    A server reports its release by the stamp. It keeps an override until the model's files change, as Triton does. A text that
    somebody changed by hand stays. The model is locked only if there is something to write, because the holder of the lock may
    hang while a restarted server waits for this function.
    """
    overridden = ModelSync.objects.filter(server=server, model=model_id, override=True).exists()
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
