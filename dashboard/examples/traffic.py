"""Samples of live traffic, from which a person may make examples. This module does not store the samples."""

from dataclasses import dataclass

import orjson
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import CLIENT_DATA, Actor, require
from dashboard.examples.services import tensor_rows
from dashboard.models import Model
from dashboard.models.example import in_words
from dashboard.servers.client import ServerClient, ServerConnections
from dashboard.servers.messages import TrafficSample
from dashboard.servers.selectors import server_asked
from dashboard.shared.exceptions import Invalid
from repository.core.errors import InvalidExample
from repository.core.golden import MAX_BYTES, read_expected, read_request, request_json
from repository.core.json_types import JsonObject
from repository.core.tensors import tensor_json

MAX_COUNT = 20
MAX_SECONDS = 60

_connections = ServerConnections()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A client's request in the form of an example. inputs: its tensors in words. expected: the answer that the client got."""

    version: int
    inputs: str
    request: JsonObject
    expected: JsonObject


@dataclass(frozen=True, slots=True)
class Sampling:
    """The requests of some seconds. skipped: the number of requests that cannot be examples, by the reason."""

    candidates: list[Candidate]
    skipped: dict[str, int]
    seconds: float


def traffic_sample(
    *, model: Model, actor: Actor, count: int, seconds: int, consent: bool, server: str = ""
) -> Sampling:
    """Return the next `count` client requests to a model on a server, by default LOCAL, with their answers. After `seconds`,
    return those so far.

    An audit entry is written before the actor sees any request. consent: the actor confirms that they may see such data.
    Raises Forbidden if the actor may not operate. Raises Invalid if the actor does not consent, or `count` or `seconds` is out
    of range. Raises Unavailable if the server does not answer, or the model is not ready.
    """
    require(actor, CLIENT_DATA)
    if not consent:
        raise Invalid.at("consent", "confirm that you may see what clients send before it is shown")
    if not 1 <= count <= MAX_COUNT:
        raise Invalid.at("count", f"expected 1 to {MAX_COUNT} requests")
    if not 1 <= seconds <= MAX_SECONDS:
        raise Invalid.at("seconds", f"expected 1 to {MAX_SECONDS} seconds")
    with transaction.atomic():
        locked, asked = Model.locked(model.pk), server_asked(server)
        audit_record(
            actor=actor,
            action="traffic.sample",
            model=locked,
            summary=f"Asked to see up to {count} requests that clients send to {model.name} on {asked.name} within {seconds} s",
        )
    found = ServerClient(asked, _connections).sample(model.name, count, seconds)
    skipped = dict(found["skipped"])
    candidates = []
    for row in found["samples"]:
        candidate = _candidate(row)
        if candidate is None:
            skipped["too_large"] = skipped.get("too_large", 0) + 1
        else:
            candidates.append(candidate)
    return Sampling(candidates, skipped, found["seconds"])


def _candidate(row: TrafficSample) -> Candidate | None:
    """Return a sample in the form of an example, or None if it is too large or cannot be an example."""
    try:
        request, expected = read_request(row["request"]), read_expected(row["answer"])
    except InvalidExample:
        return None
    kept: JsonObject = {"outputs": [tensor_json(tensor) for tensor in expected]}
    asked = request_json(request)
    if len(orjson.dumps([asked, kept])) > MAX_BYTES:
        return None
    return Candidate(row["version"], in_words(tensor_rows(request.inputs)), asked, kept)
