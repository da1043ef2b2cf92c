"""The statistics of a version from which advice is made, and what follows from them: arrivals and times of executions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from dashboard.advice.simulation import Arrivals, Bursts, IndependentGaps, ServiceTime
from dashboard.metrics.usage import Usage
from repository.core.histogram import BOUNDS_US, Counts, quantiles_ms

MIN_REQUESTS = 1000  # with fewer, p99 is the time of a few requests
MIN_GAPS = 300
KNOWN_FROM = 20  # a batch size has a measured time if it was executed this often

_VALLEY = 4  # bursts are assumed if no gap is between one length and this many times that length
_SHORT_US = 50  # shorter gaps are not told apart: the server needs this time to read a request
_RARE = 0.005  # gaps rarer than this share do not fill a valley


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of one version in `seconds` seconds.

    rows: the rows of a request, rounded. usage: see metrics.usage. cpu: the cores that the server used. cores: the cores of the
    machine, or None if that is not known.
    """

    usage: Usage
    seconds: float
    cpu: float = 0.0
    cores: int | None = None

    @property
    def shortage(self) -> str:
        """A sentence about the statistics that are missing; "" if there are enough."""
        if self.usage.success < MIN_REQUESTS:
            return f"{self.usage.success:,} of {MIN_REQUESTS:,} requests since the configuration began to serve"
        if (gaps := sum(self.usage.gaps.values())) < MIN_GAPS or not self.usage.batch_ns:
            return f"{gaps} of {MIN_GAPS} gaps between requests; the server reports none if it is an older one"
        return ""

    @property
    def rows(self) -> int:
        return max(1, round(self.usage.inferences / max(1, self.usage.compute_count)))

    @property
    def gap_ms(self) -> float:
        """The mean gap. The requests of a second are counted, because of gaps under load only a sample is."""
        return 1000 * self.seconds / self.usage.success

    @property
    def rate(self) -> float:
        return self.usage.success / self.seconds

    @property
    def rows_of_batch(self) -> float:
        batches = self.usage.batches
        return sum(rows * count for rows, count in batches.items()) / sum(batches.values())

    @property
    def queue_share(self) -> float:
        """The part of a request's time in the queue, from 0 to 1."""
        return self.usage.queue_ns / self.usage.success_ns if self.usage.success_ns else 0.0

    @property
    def rest_ms(self) -> float:
        """The mean time of a request outside of the queue and the model."""
        usage = self.usage
        rest = usage.success_ns / usage.success - (usage.queue_ns + usage.compute_ns) / max(1, usage.compute_count)
        return max(0.0, rest / 1e6)

    @property
    def busy_ns_of_request(self) -> float:
        return sum(self.usage.batch_ns.values()) / max(1, self.usage.compute_count)

    @property
    def busy_instances(self) -> float:
        """The mean number of instances that executed a batch."""
        return sum(self.usage.batch_ns.values()) / 1e9 / self.seconds

    def took_ms(self, quantile: float) -> float:
        return quantiles_ms(self.usage.request, (quantile,))[0] or 0.0


def possible_arrivals(gaps: Counts) -> list[Arrivals]:
    """Return the processes that can have made these gaps. A histogram of gaps does not tell the order of the gaps, so there are
    two if most gaps are short and the others much longer: bursts of equal length, and of random length."""
    found: list[Arrivals] = [IndependentGaps(gaps)]
    cut = _valley(gaps)
    if cut is not None:
        within = {bucket: count for bucket, count in gaps.items() if bucket <= cut}
        between = {bucket: count for bucket, count in gaps.items() if bucket > cut}
        if 0.01 * sum(within.values()) <= sum(between.values()) <= sum(within.values()):
            found.append(Bursts(within, between))
    return found


def _valley(gaps: Counts) -> int | None:
    """Return the last bucket before the widest valley of the histogram, or None if no valley is wide enough."""
    least = max(2, _RARE * sum(gaps.values()))
    filled = sorted(bucket for bucket, count in gaps.items() if count >= least)
    steps = [
        (BOUNDS_US[after - 1] / max(BOUNDS_US[before], _SHORT_US), before)
        for before, after in pairwise(filled)
        if after
    ]
    widest, cut = max(steps, default=(0.0, 0))
    return cut if widest >= _VALLEY else None


@dataclass(frozen=True, slots=True)
class ServiceRange:
    """The time of an execution: the likeliest, and two that the statistics do not rule out. `flat` grows least with the rows of
    a batch, so that batching gains most; `steep` grows most. one_size: only one size of batch is known."""

    likely: ServiceTime
    flat: ServiceTime
    steep: ServiceTime
    one_size: bool


def service_times(traffic: Traffic) -> ServiceRange:
    """Fit a line, fixed time plus time per row, to the mean times of the batch sizes."""
    batches, batch_ns = traffic.usage.batches, traffic.usage.batch_ns
    means = {
        rows: batch_ns[rows] / count for rows, count in batches.items() if count >= KNOWN_FROM and rows in batch_ns
    }
    if not means:  # no size is frequent: take them all
        means = {rows: batch_ns[rows] / count for rows, count in batches.items() if rows in batch_ns}
    weights = {rows: batches[rows] for rows in means}
    total = sum(weights.values())
    center = sum(rows * weights[rows] for rows in means) / total
    mean = sum(means[rows] * weights[rows] for rows in means) / total
    spread = _spread(traffic.usage.compute, batches, means)
    deviation = sum(weights[rows] * (rows - center) ** 2 for rows in means)
    most = mean / center  # the slope of a line through the origin: all of the time is per row
    if deviation:
        slope = sum(weights[rows] * (rows - center) * (means[rows] - mean) for rows in means) / deviation
        error = 2 * spread * mean / math.sqrt(deviation)
        low, likely, high = (min(most, max(0.0, one)) for one in (slope - error, slope, slope + error))
    else:
        low, likely, high = 0.0, most / 2, most
    flat, middle, steep = (
        ServiceTime(max(0.0, mean - slope * center), slope, means, spread) for slope in (low, likely, high)
    )
    return ServiceRange(middle, flat, steep, not deviation)


def _spread(compute: Counts, batches: Mapping[int, int], means: Mapping[int, float]) -> float:
    """Return the standard deviation of an execution's time divided by its mean, without the part that the batch sizes explain.

    Times above twice the longest mean count as that: such times are the machine's, not the model's.
    """
    longest = 2 * max(means.values())
    total, first, second = sum(compute.values()), 0.0, 0.0
    for bucket, count in compute.items():
        low = BOUNDS_US[bucket - 1] if bucket else 0
        middle = min((low + BOUNDS_US[bucket]) * 500.0, longest)  # ns
        first += count * middle
        second += count * middle * middle
    if not first:
        return 0.0
    variance = second / total - (first / total) ** 2
    known = sum(batches[rows] for rows in means)
    mean = sum(batches[rows] * means[rows] for rows in means) / known
    between = sum(batches[rows] * (means[rows] - mean) ** 2 for rows in means) / known
    return math.sqrt(max(0.0, variance - between)) / mean
