"""TorchServe's workflow APIs: register, describe, list and unregister on the management port, predict on the inference port.

Source: docs/workflow_management_api.md and docs/workflow_inference_api.md of TorchServe 0.12.
"""

import orjson

from repository.torchserve.version_settings import DEFAULT_TIMEOUT_S
from serving.core.request import ParameterValue
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.http1.routes import ANY, Route
from serving.frontends.shared.worker_threads import in_thread
from serving.torchserve.apis.authorisation import MANAGEMENT_GROUP as GROUP
from serving.torchserve.apis.management import Query, changeable, json_object, manageable, text_of, whole_of
from serving.torchserve.apis.parts import Part, described, form_parts, is_form, media_type
from serving.torchserve.apis.replies import json_reply, status_reply
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.registry.workflows import Workflows


# -- managing ----------------------------------------------------------------------------------------------------------
def list_workflows(source: TorchServeSource, exchange: Exchange) -> Reply:
    query = Query(exchange.head.query)
    return json_reply(source.known_workflows.page(query.integer("limit", 100), query.integer("next_page_token", 0)))


async def register_workflow(source: TorchServeSource, exchange: Exchange) -> Reply:
    changeable(source)
    mime = exchange.head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if mime == "application/json":
        fields = json_object(bytes(exchange.body))
        url, name = text_of(fields, "url"), text_of(fields, "workflow_name")
        timeouts = [whole_of(fields, key) for key in ("response_timeout", "startup_timeout")]
    else:
        query = Query(exchange.head.query)
        url, name = query.text("url"), query.text("workflow_name")
        timeouts = [query.number(key) for key in ("response_timeout", "startup_timeout")]
    response_s, startup_s = (one or DEFAULT_TIMEOUT_S for one in timeouts)
    outcome = await _workflows(source).register(url, name or "", response_s, startup_s)
    return status_reply(outcome.text, outcome.code)


def describe_workflow(source: TorchServeSource, exchange: Exchange) -> Reply:
    return json_reply(source.known_workflows.describe(exchange.route.params["workflow"]))


async def unregister_workflow(source: TorchServeSource, exchange: Exchange) -> Reply:
    changeable(source)
    outcome = await _workflows(source).unregister(exchange.route.params["workflow"])
    return status_reply(outcome.text, outcome.code)


# -- predicting --------------------------------------------------------------------------------------------------------
async def predict(source: TorchServeSource, exchange: Exchange) -> Reply:
    """Answer with the answer of the workflow's leaf, or, for several leaves, with an object of their answers by name."""
    name = exchange.route.params["model"]  # the check of rights needs this name
    workflow = source.known_workflows.find(name)
    kind = exchange.head.headers.get("content-type", "")
    body = bytes(exchange.body)
    parts = await in_thread(lambda: form_parts(kind, body)) if is_form(kind) else [Part("body", body, media_type(kind))]
    parameters: dict[str, ParameterValue] = {
        "torchserve_parts": described(parts, source.options.decode_input_request),
        "torchserve_headers": orjson.dumps([*exchange.head.as_sent()]).decode(),
    }
    values = [part.value for part in parts]
    answers = await source.known_workflows.run(workflow.spec, values, parameters, exchange.head.headers)
    if len(answers) == 1:
        return Reply(200, tuple(answers.values()), "application/json")
    return json_reply({leaf: _decode_json(answer) for leaf, answer in answers.items()})


def _decode_json(answer: bytes) -> object:
    """Return the JSON in a leaf's answer, or other bytes as a string."""
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        return answer.decode("utf-8", "replace")


def _workflows(source: TorchServeSource) -> Workflows:
    manageable(source)
    assert source.workflows is not None
    return source.workflows


MANAGEMENT_ROUTES = (
    Route("GET", "/workflows", GROUP, list_workflows),
    Route("POST", "/workflows", GROUP, register_workflow),
    Route("GET", "/workflows/{workflow}", GROUP, describe_workflow),
    Route("DELETE", "/workflows/{workflow}", GROUP, unregister_workflow),
)
INFERENCE_ROUTES = (Route(ANY, "/wfpredict/{model}[/{rest*}]", "inference", predict, large=True),)
