"""Records, from a server's report of its versions, which releases serve and how far the checks of loading releases are."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db.models import F, OuterRef, Subquery

from dashboard.models import Model, ModelSync, Release, Server
from dashboard.models.release import CheckStep
from dashboard.releases import life
from dashboard.servers.server_state import Report, VersionStatus


def releases_observed(reports: Sequence[Report]) -> None:
    """Record which releases serve, from what servers report of their versions.

    Servers other than Slipway's report no release, nor does a server that serves a text without a stamp. Then the release that
    was last loaded there counts.
    """
    named = {name for one in reports for name in one.models or ()}
    ids = dict(Model.objects.filter(name__in=named).values_list("name", "pk")) if named else {}
    told = [_serving_releases(status for status in one.statuses if status.serves) for one in reports]
    servers = [
        life.Serving(one.server, {}, None if one.models is None else {ids[name] for name in one.models if name in ids})
        for one in reports
    ]
    fields = ("server_id", "model__name", "release__number", "model_id", "release_id")
    known = {row[:3]: row[3:] for row in life.open_spans_of(servers).values_list(*fields)}
    new = {
        (name, number)
        for one, releases in zip(reports, told, strict=True)
        for name, number in releases.items()
        if number and (one.server.pk, name, number) not in known
    }
    found = _looked_up(list(new))
    serving = []
    for one, releases in zip(servers, told, strict=True):
        places = [known.get((one.server.pk, *told)) or found.get(told) for told in releases.items()]
        silent = [name for name, number in releases.items() if not number]
        applied = _applied(one.server, silent) if silent else {}
        serving.append(one._replace(releases=dict(place for place in places if place is not None) | applied))
    life.all_serving(serving)


def checks_observed(reports: Sequence[Report]) -> None:
    """Record the progress of the loads on servers."""
    loading: dict[tuple[str, int, tuple[str, int, int]], set[Server]] = defaultdict(set)
    for one in reports:
        for status in one.statuses:
            if (at := status.loading) is not None and at["release"] is not None:
                loading[status.name, at["release"], (at["step"], at["done"], at["of"])].add(one.server)
    for (name, number, step), servers in loading.items():
        for release in Release.objects.filter(model__name=name, number=number):
            life.stepped(release=release, servers=servers, steps=[_step(*step)])


def _applied(server: Server, names: list[str]) -> dict[int, int]:
    """Return the release of each of these models that was loaded last. If no release was recorded and
    the server has applied the model's present generation, return the newest release."""
    newest = Release.objects.filter(model=OuterRef("model")).order_by("-number").values("pk")[:1]
    rows = ModelSync.objects.filter(server=server, model__name__in=names)
    in_step = rows.filter(release=None, applied_generation=F("model__generation"))
    found = dict(in_step.values_list("model_id", Subquery(newest)))
    found.update(rows.filter(release__isnull=False).values_list("model_id", "release_id"))
    return {model: release for model, release in found.items() if release is not None}


def _step(step: str, done: int, of: int) -> CheckStep:
    return {"step": step, "done": done, "of": of}


def _serving_releases(serving: Iterable[VersionStatus]) -> dict[str, int]:
    """Return the number of the serving release by model name: the highest that its versions report, 0 if they report none."""
    releases: dict[str, int] = {}
    for status in serving:
        releases[status.name] = max(releases.get(status.name, 0), status.release)
    return releases


def _looked_up(wanted: list[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the ids of model and release by the model's name and the release's number."""
    names_of: dict[int, list[str]] = defaultdict(list)  # few numbers, however many models there are
    for name, number in wanted:
        names_of[number].append(name)
    found = {}
    for number, names in names_of.items():
        rows = Release.objects.filter(number=number, model__name__in=names).values_list("model__name", "model_id", "pk")
        found.update({(name, number): (model, release) for name, model, release in rows})
    return found
