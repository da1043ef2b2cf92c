"""GET /v2/slipway/models/{model}/traffic: the report of a model's rollout, with its arms and guardrails."""

import orjson

from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.server.inference_server import InferenceServer


def traffic(server: InferenceServer, exchange: Exchange) -> Reply:
    """Answer with the rollout's report as in the live feed, or `{"model": ..., "rollout": null}` if there is no rollout."""
    name = exchange.route.params["model"]
    rollout = server.rollout(name)
    report = {"model": name, "rollout": None} if rollout is None else rollout.report()
    return Reply(200, (orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS),), "application/json")
