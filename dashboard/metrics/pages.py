"""The history that the charts of pages draw, as JSON."""

import time

from django.http import HttpRequest, JsonResponse

from dashboard.access.authorisation import Right
from dashboard.metrics.marks import metrics_markers
from dashboard.metrics.selectors import (
    metrics_before,
    metrics_heatmap,
    metrics_history,
    metrics_instances,
    metrics_outages,
    metrics_series,
    metrics_servers,
    metrics_versions,
)
from dashboard.servers.selectors import servers_chosen
from dashboard.shared.exceptions import Invalid
from dashboard.web.addresses import get

LONGEST = 31 * 24 * 3600  # seconds
# A range of this length or more shows latency as a heat map, because percentiles over days hide the distribution.
HEATMAP_FROM = 24 * 3600
EACH, INSTANCES, SERVERS = "each", "instances", "servers"
APART = {EACH: metrics_versions, INSTANCES: metrics_instances, SERVERS: metrics_servers}
BEFORE_S = {"day": 24 * 3600, "week": 7 * 24 * 3600}  # what a range can be compared with -> how long ago that was


@get("metrics", Right.VIEW)
def metrics(request: HttpRequest) -> JsonResponse:
    """Answer with the history of `model` (default: all) between `start` and `end`, on one `server`, or on all servers of
    `environment` (default: production) together.

    Both moments are Unix seconds. Raises Invalid if one is missing, or `end` is not within LONGEST seconds after `start`.
    version: one version of the model, or one of APART to add separate series for each version, instance or server.
    part=marks: only markers and outages. compare=day or week: also the series of that time before, as `before`.
    heat=yes adds a heat map of latency, and heat=no leaves it out; by default ranges from HEATMAP_FROM have one.
    """
    start, end = _moment(request, "start"), _moment(request, "end")
    if not 0 < end - start <= LONGEST:
        raise Invalid("expected an end after the start, at most 31 days later")
    name = request.GET.get("model", "")
    shown_on = servers_chosen(server=request.GET.get("server", ""), environment=request.GET.get("environment", ""))
    if not shown_on:
        return JsonResponse({"range": None, "markers": [], "outages": [], "now": time.time()})
    answer: dict[str, object] = {
        "markers": metrics_markers(servers=shown_on, start=start, end=end, model_name=name),
        "outages": metrics_outages(servers=shown_on, start=start, end=end),
        "now": time.time(),
    }
    if request.GET.get("part") == "marks":
        return JsonResponse(answer)
    version = request.GET.get("version", "") if name else ""
    number = int(version) if version.isdecimal() and len(version) < 20 else None
    history = metrics_history(servers=shown_on, start=start, end=end, model_name=name, version=number)
    shown = metrics_series(history)
    if (apart := APART.get(version)) is not None:
        shown["versions"] = apart(history)
    answer["range"] = shown
    if (ago := BEFORE_S.get(request.GET.get("compare", ""))) is not None:
        answer["before"] = metrics_before(
            servers=shown_on, start=start, end=end, ago=ago, model_name=name, version=number
        )
    heat = request.GET.get("heat", "")
    if name and apart is None and (heat == "yes" or (heat != "no" and end - start >= HEATMAP_FROM)):
        answer["heatmap"] = metrics_heatmap(history)
    return JsonResponse(answer)


def _moment(request: HttpRequest, name: str) -> float:
    try:
        return float(request.GET[name])
    except (KeyError, ValueError):
        raise Invalid(f"expected '{name}' in Unix seconds") from None
