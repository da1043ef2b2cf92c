"""Records, from a server's report of its versions, which releases serve and how far the checks of loading releases are."""

from collections.abc import Iterable

from django.db.models import F, OuterRef, Q, Subquery

from dashboard.models import Model, ModelSync, Release, ReleaseSpan, Server
from dashboard.models.release import CheckStep
from dashboard.releases import life
from dashboard.servers.messages import Loading
from dashboard.servers.server_state import VersionStatus


def releases_observed(*, server: Server, statuses: Iterable[VersionStatus]) -> None:
    """Record which releases serve, from a server's report of all its versions.

    Servers other than Slipway's report no release, nor does a server that serves a text without a stamp. Then the release that
    was last loaded there counts.
    """
    releases = _serving_releases(status for status in statuses if status.serves)
    open_spans = ReleaseSpan.objects.filter(server=server, ended_at=None)
    known = {
        (name, number): (model, release)
        for name, number, model, release in open_spans.values_list(
            "model__name", "release__number", "model_id", "release_id"
        )
    }
    new = [(name, number) for name, number in releases.items() if number and (name, number) not in known]
    known.update(_looked_up(new))
    serving = dict(known[one] for one in releases.items() if one in known)
    silent = [name for name, number in releases.items() if not number]
    serving.update(_applied(server, silent))
    life.serving(server=server, releases=serving)


def checks_observed(*, server: Server, statuses: Iterable[VersionStatus]) -> None:
    """Record the progress of the loads on a server."""
    loading = {status.name: status.loading for status in statuses if status.loading is not None}
    for name, at in loading.items():
        if at["release"] is not None:
            for release in Release.objects.filter(model__name=name, number=at["release"]):
                life.stepped(release=release, server=server, steps=[_step(at)])


def _applied(server: Server, names: list[str]) -> dict[int, int]:
    """Return the release of each of these models that was loaded last. If no release was recorded and
    the server has applied the model's present generation, return the newest release."""
    newest = Release.objects.filter(model=OuterRef("model")).order_by("-number").values("pk")[:1]
    rows = ModelSync.objects.filter(server=server, model__name__in=names)
    in_step = rows.filter(release=None, applied_generation=F("model__generation"))
    found = dict(in_step.values_list("model_id", Subquery(newest)))
    found.update(rows.filter(release__isnull=False).values_list("model_id", "release_id"))
    return {model: release for model, release in found.items() if release is not None}


def _step(at: Loading) -> CheckStep:
    return {"step": at["step"], "done": at["done"], "of": at["of"]}


def _serving_releases(serving: Iterable[VersionStatus]) -> dict[str, int]:
    """Return the number of the serving release by model name: the highest that its versions report, 0 if they report none."""
    releases: dict[str, int] = {}
    for status in serving:
        releases[status.name] = max(releases.get(status.name, 0), status.release)
    return releases


def _looked_up(wanted: list[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the ids of model and release by the model's name and the release's number."""
    if not wanted:
        return {}
    ids = dict(Model.objects.filter(name__in=[name for name, _ in wanted]).values_list("name", "pk"))
    found = {}
    for start in range(0, len(wanted), 100):
        some = Q()
        for name, number in wanted[start : start + 100]:
            some |= Q(model=ids.get(name), number=number)
        rows = Release.objects.filter(some).values_list("model__name", "number", "model_id", "pk")
        found.update({(name, number): (model, release) for name, number, model, release in rows})
    return found
