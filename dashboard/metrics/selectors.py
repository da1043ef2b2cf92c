"""Metrics history for charts, of one server or of several together. samples.py and services.py store it.

Of several servers, requests and histograms add up, and percentiles are computed from the sum. A mean of percentiles would hide
a slow server.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

from django.db import connection
from django.db.models import Max, QuerySet

from dashboard.metrics.feed import NO_VERSION
from dashboard.metrics.samples import RESOLUTIONS, ProcessGauges, decode, merge_processes
from dashboard.metrics.usage import (
    Packed,
    Usage,
    combine,
    combine_side_by_side,
    figures,
    instance_key,
    server_key,
    unpack,
)
from dashboard.models import MetricSample, Server
from dashboard.servers.messages import Gpu
from dashboard.servers.selectors import outages
from repository.core.histogram import BOUNDS_US

# Enough points for a smooth chart. Charts read the coarsest resolution that gives this many.
ENOUGH_POINTS = 240
MAX_POINTS = 900
HEATMAP_POINTS = 200  # the fewest of any chart
# A range may start this many seconds before the oldest row that must exist, because a request takes time.
_SLACK_S = 10
# Charts of many servers read coarser rows, so that they read at most this many rows of each version.
_MOST_ROWS = 20_000
# A server whose newest second is older than that of another one by more than this does not delay the newest point of a sum.
_LATE_S = 5
_FIGURES = tuple(name for name in figures(Usage(), 1.0) if name != "failures")
# A heat map has four bands for each doubling of latency, and one band for everything below 16 us.
_BAND_BUCKETS = 4
_VERSION_FIGURES = ("rps", "p50", "p99", "errors")  # the figures that charts show for each version
_COMPARED = (
    "rps",
    "p50",
    "p95",
    "p99",
    "errors",
    "pending",
    "queue_ms",
    "compute_ms",
)  # shown for an earlier span, too
MOST_VERSIONS = 6
MOST_INSTANCES = 12
MOST_SERVERS = 12

# The lowest version of each server, then the next one of each, and so on.
_VERSIONS = """
WITH RECURSIVE found(server, version) AS (
    SELECT id, (SELECT MIN(version) FROM "dashboard_metricsample"
                WHERE server_id = one.id AND resolution = %s AND model_name = %s)
    FROM "dashboard_server" one WHERE id IN ({})
    UNION ALL
    SELECT server, (SELECT MIN(version) FROM "dashboard_metricsample" more
                    WHERE server_id = server AND resolution = %s AND model_name = %s AND more.version > found.version)
    FROM found WHERE version IS NOT NULL)
SELECT DISTINCT version FROM found WHERE version IS NOT NULL
"""

Span = tuple[float, float]  # from, to in Unix seconds


class Range(TypedDict):
    """Series between two moments, one value for each time, or None if `watch` did not run or nothing was measured."""

    step: int  # seconds from one time to the next
    times: list[int]  # Unix seconds
    series: dict[str, list[object]]  # a name of usage.Figures -> its values
    # "rss" in bytes, "cpu" in cores, of several servers their sum; "gpu@0" and "gpu_memory@0", from 0 to 1, of the first GPU,
    # of several servers "gpu@0 on NAME"
    process: dict[str, list[float | None]]
    gpus: list[Gpu]  # their last state
    batches: dict[str, int]  # batch size -> executions in the whole range
    failures: dict[str, int]  # reason -> requests in the whole range
    versions: NotRequired[dict[str, dict[str, list[object]]]]  # metrics_versions, -_instances or -_servers, on request
    total: dict[str, object]  # the figures of the whole range, except the series


class Heatmap(TypedDict):
    """Numbers of requests by latency and time. bounds_ms and counts are empty if there was no request."""

    step: int  # seconds from one time to the next
    times: list[int]  # Unix seconds
    bounds_ms: list[float]  # ascending; each band is between two of them
    counts: list[list[int]]  # for each band between two bounds, a number for each time


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a span of time. Times in ms, error_share from 0 to 1, or None if nothing was measured."""

    requests: int = 0
    p50: float | None = None
    p99: float | None = None
    error_share: float | None = None


class Before(TypedDict):
    """Series of an earlier span of the same length, at times that are moved into the present one."""

    times: list[int]  # Unix seconds
    series: dict[str, list[object]]


class DownTime(TypedDict):
    """A time in which no shown server answered, in Unix seconds. No figure counts the requests of that time."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class History:
    """The rows of a span of time, read once for all that is drawn of them. start, end: in Unix seconds.

    resolution: seconds, of all rows but the newest, which are finer. watched: the spans in which `watch` ran, in order of
    time. usages: version -> the starts and usages of its rows and the keys of their servers, with the whole servers as version
    0 if the history is not of a model. instances: usage.instance_key -> the starts and usages of one instance; of several
    servers, its label names the server. names: the servers by key.
    """

    start: float
    end: float
    resolution: int
    watched: "list[_Watched]"
    usages: dict[int, list[tuple[int, Usage, int]]]
    instances: dict[str, list[tuple[int, Packed]]]
    names: Mapping[int, str]

    def step(self, max_points: int) -> int:
        """Return the seconds of a point of a chart with at most so many points: whole rows."""
        return self.resolution * max(1, math.ceil((self.end - self.start) / self.resolution / max_points))

    def times(self, step: int) -> range:
        return range(int(self.start) - int(self.start) % step, math.ceil(self.end), step)

    def steps(self, step: int, version: int | None = None, server: int | None = None) -> dict[int, "_Step"]:
        """Return the points in which `watch` ran, by their start and in order of time: of all versions together or of one, and
        of all servers together or of one."""
        found: dict[int, _Step] = defaultdict(_Step)
        first = self.times(step)[0]  # a chart with longer steps may begin a little earlier
        for row in self.watched:
            if row.at >= first and server in (None, row.server):
                found[row.at - row.at % step].add(row)
        for number, rows in self.usages.items():
            if version in (None, number):
                for at, usage, key in rows:
                    if server in (None, key) and at - at % step in found:
                        found[at - at % step].usages[at].append(usage)
        return found


class _Watched(NamedTuple):
    """A span in which `watch` read a server's feed: its start, its seconds, the server's key, and the gauges of its process."""

    at: int
    seconds: int
    server: int
    process: ProcessGauges | None


@dataclass(slots=True)
class _Step:
    """The rows of one point of a chart. seconds: how long `watch` read any of the servers in the point's span of time."""

    seconds: int = 0
    usages: dict[int, list[Usage]] = field(default_factory=lambda: defaultdict(list))  # by the start of the span
    processes: dict[int, list[ProcessGauges]] = field(default_factory=lambda: defaultdict(list))  # by server
    _end: int = 0

    def add(self, row: _Watched) -> None:
        """Count a span in; spans come in order of time, and those of several servers overlap."""
        end = row.at + row.seconds
        self.seconds += max(0, end - max(row.at, self._end))
        self._end = max(self._end, end)
        if row.process is not None:
            self.processes[row.server].append(row.process)

    def usage(self) -> Usage:
        spans = [one[0] if len(one) == 1 else combine_side_by_side(one) for one in self.usages.values()]
        return spans[0] if len(spans) == 1 else combine(spans)


def metrics_range(
    *,
    servers: Sequence[Server],
    start: float,
    end: float,
    model_name: str = "",
    version: int | None = None,
    max_points: int = MAX_POINTS,
) -> Range:
    """Return the series of a model or one of its versions, or of the whole servers if no name is given.

    start, end: in Unix seconds.
    """
    history = metrics_history(servers=servers, start=start, end=end, model_name=model_name, version=version)
    return metrics_series(history, max_points)


def metrics_series(history: History, max_points: int = MAX_POINTS, *, version: int | None = None) -> Range:
    """Return the series of a history: of all its versions together, or of one."""
    step = history.step(max_points)
    steps, times = history.steps(step, version), list(history.times(step))
    usages = {at: one.usage() for at, one in steps.items()}
    points = {at: figures(usage, steps[at].seconds) for at, usage in usages.items()}
    shown = [cast(Mapping[str, object] | None, points.get(at)) for at in times]
    total = figures(combine(usages.values()), max(1, sum(one.seconds for one in steps.values())))
    return {
        "step": step,
        "times": times,
        "series": {name: [None if point is None else point[name] for point in shown] for name in _FIGURES},
        "process": _process_series([steps.get(at) for at in times], history.names),
        "gpus": _gpus(history.watched),
        "batches": total["batch"],
        "failures": total["failures"],
        "total": {name: value for name, value in total.items() if name not in ("batch", "failures")},
    }


def metrics_before(
    *, servers: Sequence[Server], start: float, end: float, ago: int, model_name: str = "", version: int | None = None
) -> Before:
    """Return the series of the same span `ago` seconds earlier. start, end: of the present span, in Unix seconds."""
    found = metrics_range(servers=servers, start=start - ago, end=end - ago, model_name=model_name, version=version)
    series = {name: found["series"][name] for name in _COMPARED}
    series |= {name: list(values) for name, values in found["process"].items()}
    return {"times": [at + ago for at in found["times"]], "series": series}


def last_requested(*, server: Server, model_name: str, version: int) -> int | None:
    """Return the time of a version's last request in Unix seconds, as exact as the history is, or None if there is none."""
    newest = [
        MetricSample.objects.filter(server=server, model_name=model_name, version=version, resolution=resolution)
        .order_by("-at")
        .values_list("at", flat=True)
        .first()
        for resolution in RESOLUTIONS
    ]
    return max((at for at in newest if at is not None), default=None)


def metrics_totals(
    *, servers: Sequence[Server], model_name: str, wanted: Sequence[tuple[Sequence[int], Sequence[Span]]]
) -> list[Totals]:
    """Return the totals of each pair of versions and spans in `wanted`: the versions on all servers, in these spans of time.

    A row that crosses the edge of a span counts if its middle is in the span.
    """
    spans = [span for _, within in wanted for span in within]
    numbers = {number for versions, _ in wanted for number in versions}
    if not spans:
        return [Totals() for _ in wanted]
    start, end = min(low for low, _ in spans), max(high for _, high in spans)
    resolution = _resolution(start, end, time.time(), len(servers))
    usages: list[list[Usage]] = [[] for _ in wanted]
    first = int(start) - int(start) % resolution
    for parts in _segments(servers, resolution, first, math.ceil(end)):
        for at, version, data in parts.rows(model_name, numbers, "at", "version", "data"):
            length = parts.resolution
            middle = (max(at, start) + min(at + length, end)) / 2
            for found, (versions, within) in zip(usages, wanted, strict=True):
                if version in versions and any(begin <= middle <= until for begin, until in within):
                    found.append(decode(data).usage)
    return [_totals(combine(found)) for found in usages]


def _totals(usage: Usage) -> Totals:
    shown, failed = figures(usage, 1.0), max(0, usage.fail - usage.cancel)
    requests = usage.success + failed
    return Totals(requests, shown["p50"], shown["p99"], failed / requests if requests else None)


def metrics_heatmap(history: History, max_points: int = HEATMAP_POINTS) -> Heatmap:
    """Return the numbers of requests by latency and time."""
    step = history.step(max_points)
    steps, times = history.steps(step), list(history.times(step))
    columns = [_bands(steps[at].usage()) if at in steps else {} for at in times]
    used = [band for column in columns for band in column]
    if not used:
        return {"step": step, "times": times, "bounds_ms": [], "counts": []}
    bands = range(min(used), max(used) + 1)
    bounds = [_band_start_us(band) / 1000 for band in (*bands, bands.stop)]
    counts = [[column.get(band, 0) for column in columns] for band in bands]
    return {"step": step, "times": times, "bounds_ms": bounds, "counts": counts}


def metrics_outages(*, servers: Sequence[Server], start: float, end: float) -> list[DownTime]:
    """Return the times between two moments (Unix seconds) in which none of the servers answered, the oldest first."""
    since, until = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)
    down: list[tuple[datetime, datetime]] = [(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))]
    for several in outages(servers, since, until).values():
        own = [(one.start, one.end or until) for one in several]
        pairs = [(max(one[0], other[0]), min(one[1], other[1])) for one in down for other in own]
        down = [pair for pair in pairs if pair[0] < pair[1]]
    return [{"start": low.timestamp(), "end": high.timestamp()} for low, high in down if servers]


def metrics_versions(history: History, max_points: int = MAX_POINTS) -> dict[str, dict[str, list[object]]]:
    """Return the series of each version of a model, by version and figure, at the times of metrics_series.

    The versions are the MOST_VERSIONS highest ones that had requests in that time, and NO_VERSION.
    """
    numbers, step = sorted(history.usages), history.step(max_points)
    found = {}
    for number in [*numbers[-MOST_VERSIONS:], *([NO_VERSION] if NO_VERSION in numbers[:-MOST_VERSIONS] else [])]:
        points = {at: figures(one.usage(), one.seconds) for at, one in history.steps(step, number).items()}
        found[str(number)] = {
            name: [points[at][name] if at in points else None for at in history.times(step)]  # type: ignore[literal-required]
            for name in _VERSION_FIGURES
        }
    return found


def metrics_instances(history: History, max_points: int = MAX_POINTS) -> dict[str, dict[str, list[object]]]:
    """Return the series of each instance of the versions that have several, by usage.instance_key and figure, at the times of
    metrics_series: the MOST_INSTANCES busiest ones. The history has instances for spans of up to samples.FINE seconds."""
    step = history.step(max_points)
    steps, times = history.steps(step), history.times(step)
    usages = {key: _usages_of(rows, step) for key, rows in history.instances.items()}
    requests = Counter({key: sum(one.success + one.fail for one in found.values()) for key, found in usages.items()})
    found = {}
    for key, _ in sorted(requests.most_common(MOST_INSTANCES)):
        points = {at: figures(usages[key].get(at, Usage()), one.seconds) for at, one in steps.items()}
        found[key] = {
            name: [points[at][name] if at in points else None for at in times]  # type: ignore[literal-required]
            for name in _VERSION_FIGURES
        }
    return found


def metrics_servers(history: History, max_points: int = MAX_POINTS) -> dict[str, dict[str, list[object]]]:
    """Return the series of each server, by usage.server_key and figure, at the times of metrics_series: the MOST_SERVERS
    busiest ones."""
    step = history.step(max_points)
    requests: Counter[int] = Counter(dict.fromkeys(history.names, 0))
    for rows in history.usages.values():
        for _, usage, server in rows:
            requests[server] += usage.success + usage.fail
    found = {}
    for server, _ in requests.most_common(MOST_SERVERS):
        points = {at: figures(one.usage(), one.seconds) for at, one in history.steps(step, server=server).items()}
        found[server_key(history.names[server])] = {
            name: [points[at][name] if at in points else None for at in history.times(step)]  # type: ignore[literal-required]
            for name in _VERSION_FIGURES
        }
    return found


def _usages_of(rows: list[tuple[int, Packed]], step: int) -> dict[int, Usage]:
    """Return the usage of one instance in each point of a chart, by its start."""
    found: dict[int, list[Packed]] = defaultdict(list)
    for at, packed in rows:
        found[at - at % step].append(packed)
    return {at: combine(map(unpack, several)) for at, several in found.items()}


# -- reading ---------------------------------------------------------------------------------------------------------
def metrics_history(
    *, servers: Sequence[Server], start: float, end: float, model_name: str = "", version: int | None = None
) -> History:
    """Read what charts of a span (Unix seconds) are drawn from: of a model, one of its versions, or the whole servers."""
    resolution = _resolution(start, end, time.time(), len(servers))
    watched: list[_Watched] = []
    usages: dict[int, list[tuple[int, Usage, int]]] = defaultdict(list)
    instances: dict[str, list[tuple[int, Packed]]] = defaultdict(list)
    names = {server.pk: server.name for server in servers}
    found = History(start, end, resolution, watched, usages, instances, names)
    first = found.times(found.step(HEATMAP_POINTS))[0]
    for parts in _segments(servers, resolution, first, math.ceil(end)):
        for key, at, data in parts.rows("", [0], "server", "at", "data"):
            sample = decode(data)
            watched.append(_Watched(at, parts.resolution, key, sample.process))
            if not model_name:
                usages[0].append((at, sample.usage, key))
        if model_name:
            numbers = _versions(list(names), model_name, parts.resolution) if version is None else [version]
            for key, number, at, data in parts.rows(model_name, numbers, "server", "version", "at", "data"):
                sample = decode(data)
                usages[number].append((at, sample.usage, key))
                for label, packed in sample.instances.items():
                    label = f"{label} {server_key(names[key])}" if len(servers) > 1 else label
                    instances[instance_key(number, label)].append((at, packed))
    watched.sort(key=lambda row: (row.at, row.seconds))
    _drop_unsettled(found)
    return found


def _drop_unsettled(history: History) -> None:
    """Remove the newest seconds that not every server has stored yet, because they would look like a decrease.

    A server that is late by more than _LATE_S does not answer, and the sum goes on without it.
    """
    newest: dict[int, int] = {}
    for row in history.watched:
        newest[row.server] = max(newest.get(row.server, 0), row.at + row.seconds)
    last = max(newest.values(), default=0)
    until = min((at for at in newest.values() if at >= last - _LATE_S), default=0)
    if until == last:
        return
    history.watched[:] = [row for row in history.watched if row.at < until]
    for usages in history.usages.values():
        usages[:] = [row for row in usages if row[0] < until]
    for packed in history.instances.values():
        packed[:] = [row for row in packed if row[0] < until]


def metrics_rows(
    servers: Collection[int], model_name: str, resolution: int, start: int, end: int, version: int | None = None
) -> QuerySet[MetricSample]:
    """Return the rows of servers (their keys) that begin in [start, end): of a model, of one of its versions, or of the whole
    servers ("").

    The query names the versions: without them, SQLite reads the rows of all models of that time.
    """
    rows = MetricSample.objects.filter(server__in=servers, model_name=model_name, resolution=resolution)
    if not model_name:
        versions = [0]
    elif version is not None:
        versions = [version]
    else:
        versions = _versions(servers, model_name, resolution)
    return rows.filter(version__in=versions, at__gte=start, at__lt=end)


def _versions(servers: Collection[int], model_name: str, resolution: int) -> list[int]:
    """Return the versions of which there are rows. A step in the index for each one: SELECT DISTINCT would read all rows."""
    if not servers:
        return []
    which = (resolution, model_name)
    with connection.cursor() as cursor:
        cursor.execute(_VERSIONS.format(", ".join(["%s"] * len(servers))), [*which, *servers, *which])
        return [version for (version,) in cursor.fetchall()]


def _resolution(start: float, end: float, now: float, servers: int = 1) -> int:
    """Return the coarsest resolution that gives ENOUGH_POINTS; a coarser one if finer rows do not reach back to the start, or
    the rows of so many servers would be too many."""
    finest_first = sorted(RESOLUTIONS)
    enough = [span for span in finest_first if (end - start) / span >= ENOUGH_POINTS]
    wanted = max(enough, default=finest_first[0])
    kept = [span for span in finest_first if span >= wanted and start >= now - RESOLUTIONS[span] - _SLACK_S]
    few = [span for span in kept if servers * (end - start) / span <= _MOST_ROWS]
    return next(iter(few or kept), finest_first[-1])


class _Segments(NamedTuple):
    """The parts of a range that are read from rows of one resolution. keys: when the parts of servers begin -> the servers."""

    resolution: int
    keys: Mapping[int, Sequence[int]]
    end: int

    def rows(self, model_name: str, versions: Collection[int], *fields: str) -> Iterator[tuple[Any, ...]]:
        """Yield these fields of the rows, which are read in one statement."""
        yield from self._united(model_name, versions, lambda rows: rows.values_list(*fields))

    def newest(self) -> dict[int, int]:
        """Return when the newest row of each server begins."""
        return dict(self._united("", [0], lambda rows: rows.values_list("server").annotate(newest=Max("at"))))

    def _united(
        self, model_name: str, versions: Collection[int], ask: Callable[[QuerySet[Any]], QuerySet[Any]]
    ) -> QuerySet[Any]:
        rows = MetricSample.objects.filter(
            resolution=self.resolution, model_name=model_name, version__in=versions
        ).order_by()
        several = [ask(rows.filter(server__in=keys, at__gte=low, at__lt=self.end)) for low, keys in self.keys.items()]
        return several[0].union(*several[1:], all=True) if several else MetricSample.objects.none()


def _segments(servers: Sequence[Server], resolution: int, start: int, end: int) -> Iterator[_Segments]:
    """Yield the parts of a range, the coarsest rows first. The newest part is read from finer rows because it is not merged
    yet; where it begins may differ between servers."""
    begins = {server.pk: start for server in servers}
    for span in sorted((one for one in RESOLUTIONS if one <= resolution), reverse=True):
        alike: dict[int, list[int]] = defaultdict(list)
        for key, low in begins.items():
            alike[low].append(key)
        found = _Segments(span, alike, end)
        yield found
        begins |= {key: at + span for key, at in found.newest().items()}


# -- shaping ---------------------------------------------------------------------------------------------------------
def _process_series(steps: list[_Step | None], names: Mapping[int, str]) -> dict[str, list[float | None]]:
    each = [[merge_processes(one) for one in step.processes.values()] if step is not None else [] for step in steps]
    return {
        "rss": [sum(one["rss"] for one in merged) if merged else None for merged in each],
        "cpu": [sum(one["cpu"] for one in merged) if merged else None for merged in each],
        **(_gpu_series(steps, names) if len(names) <= MOST_SERVERS else {}),
    }


def _gpu_series(steps: list[_Step | None], names: Mapping[int, str]) -> dict[str, list[float | None]]:
    """Return the use of each GPU, and the share of its memory that is in use. GPUs have the numbers of their server."""
    found: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(steps))
    for place, step in enumerate(steps):
        for server, several in step.processes.items() if step is not None else ():
            where = f" {server_key(names[server])}" if len(names) > 1 else ""
            for number, gpu in enumerate(several[-1]["gpus"]):
                found[f"gpu@{number}{where}"][place] = gpu["utilization"]
                used, total = gpu["memory_used"], gpu["memory_total"]
                found[f"gpu_memory@{number}{where}"][place] = used / total if total and used is not None else None
    return found


def _gpus(watched: list[_Watched]) -> list[Gpu]:
    """Return the last state of each server's GPUs."""
    last = {row.server: row.process["gpus"] for row in watched if row.process is not None}
    return [gpu for gpus in last.values() for gpu in gpus]


def _bands(usage: Usage) -> dict[int, int]:
    bands: dict[int, int] = defaultdict(int)
    for bucket, count in usage.request.items():
        bands[max(0, bucket // _BAND_BUCKETS - 3)] += count
    return bands


def _band_start_us(band: int) -> int:
    return BOUNDS_US[(band + 3) * _BAND_BUCKETS - 1] if band else 0
