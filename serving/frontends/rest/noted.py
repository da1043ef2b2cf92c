"""GET /v2/slipway/requests?after=N: the slowest and the failed requests of every version in the last minutes.

The answer is {"instance", "spans": [{"model", "version", "number", "start", "end", "slow", "failed", "causes"}]}; see
serving.telemetry.noted_requests. A caller that passes the highest number that it has seen gets each span once.
"""

from urllib.parse import parse_qs

import orjson

from serving.core.errors import invalid
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.rest.json_body import JsonObject
from serving.server.inference_server import InferenceServer
from serving.telemetry.noted_requests import INSTANCE

MOST_SPANS = 200  # of one answer, which has at most about 3 MB


def noted_requests(server: InferenceServer, exchange: Exchange) -> Reply:
    given = parse_qs(exchange.head.query).get("after", ["0"])[-1]
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise invalid("expected 'after' to be the number of a span, a whole number from 0")
    found: list[tuple[int, JsonObject]] = []
    for model in server.all_statistics():
        for span in model.noted.spans(int(given)):
            head = {"model": model.model_name, "namespace": model.namespace, "version": str(model.model_version)}
            found.append((span["number"], {**head, **span}))
    found.sort(key=lambda entry: entry[0])
    body = {"instance": INSTANCE, "spans": [span for _, span in found[:MOST_SPANS]]}
    return Reply(200, (orjson.dumps(body),), "application/json")
