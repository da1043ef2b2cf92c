"""Reads of examples: lists without tensors, one with its tensors, and golden requests in the form for load requests."""

from django.db.models import Q, QuerySet

from dashboard.access.authorisation import CLIENT_DATA, Actor, require
from dashboard.models import Example, Model
from dashboard.shared.exceptions import NotFound
from repository.core.errors import InvalidExample
from repository.core.golden import read_expected, read_request, request_json
from repository.core.json_types import JsonObject
from repository.core.tensors import tensor_json


def examples(model: Model) -> QuerySet[Example]:
    """Return a model's examples by name, without reading their tensors. has_expected: whether it has expected outputs."""
    return model.examples.defer("request", "expected").annotate(has_expected=Q(expected__isnull=False))


def example_get(model: Model, name: str) -> Example:
    """Return an example. Raises NotFound if the model has no example of that name."""
    try:
        return model.examples.select_related("model").get(name=name)
    except Example.DoesNotExist:
        raise NotFound(f"model '{model.name}' has no example named '{name}'") from None


def example_shown(model: Model, name: str, actor: Actor) -> Example:
    """Return an example to an actor who will see its tensors.

    Raises Forbidden if a client sent the example and the actor lacks CLIENT_DATA.
    """
    example = example_get(model, name)
    if example.of_clients:
        require(actor, CLIENT_DATA)
    return example


def golden_examples(model: Model) -> QuerySet[Example]:
    return model.examples.filter(golden=True, expected__isnull=False)


def golden_checks(model: Model) -> list[JsonObject]:
    """Return a model's golden requests in the form of the load parameter `slipway.golden` (repository.core.golden)."""
    return [golden_json(example) for example in golden_examples(model)]


def golden_json(example: Example) -> JsonObject:
    """Return a golden request as JSON. Tensors are formatted again, because PostgreSQL returns 1e30 as a 31-digit integer.

    A request that was kept before a rule existed is sent unchanged, and the server reports its fault.
    """
    try:
        request = request_json(read_request(example.request))
    except InvalidExample:
        request = example.request
    return {
        "name": example.name,
        "request": request,
        "expected": {"outputs": [tensor_json(tensor) for tensor in read_expected(example.expected)]},
        "tolerance": {"absolute": example.absolute, "relative": example.relative},
        **({"private": True} if example.of_clients else {}),
    }
