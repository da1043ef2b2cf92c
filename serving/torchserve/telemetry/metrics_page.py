"""GET /metrics on TorchServe's metrics address: TorchServe's families and the families of handlers as Prometheus text.

metrics.yaml may set the families and their labels. In the mode "log" the page is empty, as in TorchServe. A comma precedes the
brace that ends labels, because people parse TorchServe's page with patterns that expect the comma. Prometheus accepts it.
Source: docs/metrics_api.md of TorchServe 0.12; Prometheus, exposition formats, text 0.0.4.
"""

import re
from collections.abc import Collection, Iterator
from urllib.parse import parse_qsl

from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.metrics.prometheus import CONTENT_TYPE
from serving.telemetry.label_text import escape_label
from serving.torchserve.registry.errors import bad_request
from serving.torchserve.telemetry.metric_families import Family
from serving.torchserve.telemetry.metric_values import MetricValues

# The families on the page in the mode "legacy", as in TorchServe 0.7. The others are logged.
LEGACY = frozenset(
    ("ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds")
)
MAX_QUERY_FIELDS = 1000
_LABELS_END = re.compile(r'(?<=")\} (?=\S+$)', re.MULTILINE)  # the end of a sample's labels: a value has no space
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class MetricsPage:
    """Handles the route of the metrics API. mode: "log", "prometheus" or "legacy"."""

    def __init__(self, values: MetricValues, mode: str) -> None:
        self._values = values
        self._mode = mode

    async def show(self, exchange: Exchange) -> Reply:
        """Answer with the families that the query's `name[]` parameters select, or with all families if it has none."""
        text = ""
        if self._mode != "log":
            await self._values.refreshed()
            text = "".join(self.render(_named(exchange.head.query)))
        return Reply(200, (text.encode(),), CONTENT_TYPE)

    def render(self, names: Collection[str] = ()) -> Iterator[str]:
        """Yield the lines of the families of these names, or of all families if there are no names."""
        legacy = self._mode == "legacy"
        custom = {} if legacy else dict(self._values.custom())
        families = self._values.families
        for family in (*families.own, *families.model):
            shown = not names or family.name in names
            if shown and (not legacy or family.name in LEGACY) and family.name not in custom:
                yield from self._family(family)
        for name, lines in custom.items():
            if not names or name in names:
                yield _LABELS_END.sub(",} ", lines)

    def _family(self, family: Family) -> Iterator[str]:
        if not _NAME.fullmatch(family.name):
            return
        unit = family.unit.replace("\\", r"\\").replace("\n", " ")
        yield f"# HELP {family.name} Torchserve prometheus {family.type} metric with unit: {unit}\n"
        yield f"# TYPE {family.name} {family.type}\n"
        for labels, value in self._values.samples(family):
            text = "".join(f'{name}="{escape_label(one)}",' for name, one in labels)
            yield f"{family.name}{f'{{{text}}}' if text else ''} {value!r}\n"


def _named(query: str) -> set[str]:
    """Return the values of name[] in a query."""
    try:
        return {value for key, value in parse_qsl(query, max_num_fields=MAX_QUERY_FIELDS) if key == "name[]"}
    except ValueError:
        raise bad_request(f"expected at most {MAX_QUERY_FIELDS} names") from None
