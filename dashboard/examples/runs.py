"""Runs golden requests now: sends each to a server, and compares the answer with the expected outputs."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from dashboard.access.authorisation import SYSTEM, Actor, Right, require, require_inference
from dashboard.examples.outcomes import outcome, outcomes_keep
from dashboard.examples.selectors import golden_examples
from dashboard.models import Example, Model, Server
from dashboard.releases.selectors import serving_release
from dashboard.servers.answers import Answer, read_answer
from dashboard.servers.client import ServerClient, ServerConnections
from dashboard.servers.fair_shares import inference_slot
from dashboard.servers.selectors import server_asked
from dashboard.servers.services import LOCAL
from dashboard.shared.exceptions import DashboardError, Invalid
from repository.core.errors import InvalidExample
from repository.core.golden import OutputVerdict, Tolerance, compare, read_expected, read_request, request_body
from repository.core.json_types import JsonObject
from repository.core.tensors import tensor_json

BUDGET_S = 120.0  # the time for all requests of one run; requests after it are reported as not run

_connections = ServerConnections()


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """The result of one golden request. detail: why it failed, or the largest deviation. version: the version that answered."""

    name: str
    passed: bool
    detail: str
    version: str = ""
    ms: float = 0.0
    outputs: list[OutputVerdict] = field(default_factory=list)


def golden_run(*, model: Model, actor: Actor, version: str = "", server: str = "") -> list[GoldenResult]:
    """Send every golden request of a model to a server, and return the results; those of LOCAL are kept.

    version: a number or an alias; "" for the server's choice. server: its name; "" for LOCAL.
    Raises Forbidden if the actor may not infer with the model. Raises Unavailable if the server does not answer. A request that
    the server refuses has failed, with the server's message.
    """
    require(actor, Right.INFER)
    require_inference(actor, model.name)
    asked = server_asked(server)
    results = list(_run_all(golden_examples(model), model.name, version, actor, asked))
    if asked.name != LOCAL:
        return results
    serves = serving_release(model)
    number = serves.number if serves is not None else 0
    outcomes_keep(
        model=model, outcomes={one.name: outcome(asdict(one), release=number, checked=False) for one in results}
    )
    return results


def golden_failure(*, model: Model, server: Server) -> str:
    """Send the golden requests of a model to a server; return why the first that failed did, as a clause, "" if all passed."""
    try:
        results = _run_all(golden_examples(model), model.name, "", SYSTEM, server)
        failed = next((one for one in results if not one.passed), None)
    except DashboardError as error:
        return f"golden requests were not answered: {error.message}"
    return f"golden request '{failed.name}' failed: {failed.detail}" if failed is not None else ""


def example_answer(*, example: Example, actor: Actor, version: str = "", server: str = "") -> JsonObject:
    """Send an example to a server, by default LOCAL, and return the answer in the form of expected outputs.

    Raises Forbidden if the actor may not infer with the model.
    Raises Invalid, with the server's message, if the server refuses the request.
    """
    require(actor, Right.INFER)
    require_inference(actor, example.model.name)
    answer = _ask(example, example.model.name, version, actor, server_asked(server))
    if answer.refusal:
        raise Invalid(answer.refusal)
    return {"outputs": [tensor_json(tensor) for tensor in answer.outputs], "version": answer.version}


def _run_all(
    examples: Iterable[Example], name: str, version: str, actor: Actor, server: Server
) -> Iterable[GoldenResult]:
    deadline = time.monotonic() + BUDGET_S
    for example in examples:
        if time.monotonic() > deadline:
            yield GoldenResult(
                example.name, False, f"it was not run, because the others took {BUDGET_S:.0f} s together"
            )
        else:
            yield _run(example, name, version, actor, server)


def _run(example: Example, name: str, version: str, actor: Actor, server: Server) -> GoldenResult:
    begin = time.monotonic()
    answer = _ask(example, name, version, actor, server)
    ms = (time.monotonic() - begin) * 1000
    if answer.refusal:
        return GoldenResult(example.name, False, answer.refusal, version, ms)
    tolerance = Tolerance(example.absolute, example.relative)
    expected, answered = read_expected(example.expected), {one.name: one for one in answer.outputs}
    verdict = compare(expected, answered, tolerance, private=example.of_clients)
    return GoldenResult(example.name, verdict.passed, verdict.clause, answer.version, ms, verdict.outputs)


def _ask(example: Example, name: str, version: str, actor: Actor, server: Server) -> Answer:
    try:
        text, binary = request_body(read_request(example.request))
    except InvalidExample as error:  # the example was kept before the rule existed
        return Answer([], refusal=error.message)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    client = ServerClient(server, _connections)
    with inference_slot(actor):
        answer = client.infer_raw(name, text + binary, headers, version=version)
    return read_answer(answer)
