"""POST /v2/slipway/models/{model}/sample: the next requests of a model with their answers, as V2 JSON.

The body is {"count": 10, "seconds": 60, "version": "champion"}; all fields are optional. The answer is sent after `count`
requests or `seconds`. Tensors have the format of golden requests (repository.core.tensors).
"""

from repository.core.tensors import tensor_json
from serving.core.errors import invalid
from serving.core.example_tensors import from_array
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.rest.json_body import JsonObject, with_json
from serving.frontends.rest.json_output import dump_json
from serving.frontends.shared.worker_threads import in_thread
from serving.server.inference_server import InferenceServer
from serving.telemetry.traffic_samples import Sample, Sampling

MAX_COUNT = 100
MAX_SECONDS = 600


@with_json
async def sample(server: InferenceServer, exchange: Exchange, body: JsonObject) -> Reply:
    count, seconds, version = body.get("count", 10), body.get("seconds", 60), body.get("version", "")
    if unknown := sorted(body.keys() - {"count", "seconds", "version"}):
        raise invalid(f"expected 'count', 'seconds' and 'version', not '{unknown[0][:80]}'")
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise invalid(f"expected 'count' to be a whole number from 1 to {MAX_COUNT}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
        raise invalid(f"expected 'seconds' to be a number over 0 and at most {MAX_SECONDS}")
    if not isinstance(version, str):
        raise invalid("expected 'version' to be a text: a number or an alias")
    found = await server.sample(exchange.route.params["model"], version, count, seconds)
    return Reply(200, (await in_thread(_written, found),), "application/json")


def _written(found: Sampling) -> bytes:
    skipped = {"too_large": found.too_large, "failed": found.failed, "unfit": found.unfit}
    samples = [_sample(one) for one in found.samples]
    return dump_json({"model": found.model, "samples": samples, "skipped": skipped, "seconds": round(found.seconds, 3)})


def _sample(one: Sample) -> JsonObject:
    request: JsonObject = {"inputs": [tensor_json(from_array(name, tensor)) for name, tensor in one.inputs.items()]}
    if one.requested_outputs:
        request["outputs"] = [{"name": name} for name in one.requested_outputs]
    if one.parameters:
        request["parameters"] = one.parameters
    outputs = [tensor_json(from_array(name, tensor)) for name, tensor in one.outputs.items()]
    return {"version": one.version, "request": request, "answer": {"outputs": outputs}}
