"""GET /v2/slipway/models/{model}/traffic: the report of a model's rollout: its arms and its guardrails."""

import orjson

from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.server.inference_server import InferenceServer


def traffic(server: InferenceServer, exchange: Exchange) -> Reply:
    """Answer with the report of the live feed; `{"model": ..., "rollout": null}` for a model without a rollout."""
    name = exchange.route.params["model"]
    rollout = server.rollout(name)
    report = {"model": name, "rollout": None} if rollout is None else rollout.report()
    return Reply(200, (orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS),), "application/json")
