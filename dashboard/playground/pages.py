"""The page of the playground: a form made from a model's signature, and the same request as code."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.catalog.pages import model_context
from dashboard.catalog.traits import traits_of
from dashboard.configuration.services import fields_in
from dashboard.configuration.signatures import served_signature
from dashboard.examples.selectors import examples
from dashboard.models import Server, Version
from dashboard.models.version import Signature
from dashboard.playground.client_protocols import client_protocols
from dashboard.playground.labels import output_labels
from dashboard.releases.example_fit import misfit
from dashboard.releases.selectors import current_document
from dashboard.servers.selectors import offered_servers, servers
from dashboard.servers.services import LOCAL
from dashboard.shared.choices import VersionState
from dashboard.shared.model_logs import model_log_tail
from dashboard.web.addresses import get
from dashboard.web.pages import SELECTABLE, page_of, respond

EXAMPLES = 100  # the most examples on one page
LOG_LINES = 200  # lines of the log that are shown next to an answer
SNIPPETS = (("curl", "curl"), ("http", "Python, HTTP"), ("grpc", "Python, gRPC"))
DEFAULT = "default"  # the word in an address for the version that the server chooses


class Choice(NamedTuple):
    """A version that a request can choose. name: the version's name in the request; "" for the server's choice."""

    name: str
    label: str


@get("models/<str:name>/playground", Right.VIEW)
def model_playground(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "playground")
    model, live = head["model"], head["summary"].loaded_versions
    published = [row for row in select.versions(model) if row.state == VersionState.PUBLISHED]
    document = current_document(model)
    fields, aliases = fields_in(document), document.aliases
    choices = _choices(
        _offered(request, [row.number for row in published]), live, aliases, head["summary"].archive_versions
    )
    chosen = _chosen(request, choices)
    version = _version(published, chosen[0], live, aliases)
    signature, traits = (
        served_signature(document, version),
        traits_of(document, version is not None and version.streams),
    )
    shown = list(servers())
    handler, addresses = _asks_handler(version, signature), _addresses(shown)
    facts = {name: fact for one in client_protocols() for name, fact in one.facts(document).items()}
    others = [one for one in client_protocols() if addresses.get(one.name)]
    asking = [(one.snippet, one.label) for one in others if handler or any(one.facts(document).values())]
    golden_fits = not (traits.decoupled or traits.sequence)
    context = {
        **head,
        "signature": signature,
        "choices": choices,
        "chosen": chosen[0],
        "compared": chosen[1] if len(chosen) > 1 and not traits.decoupled else None,
        "snippet_kinds": [*asking, *(row for row in SNIPPETS if row[0] == "grpc" or not traits.decoupled)],
        "other_streams": [one.streams for one in others] if handler else [],
        "servers": offered_servers(shown),
        "server": request.GET.get("server", LOCAL),
        "log_lines": model_log_tail(name, LOG_LINES) if handler else [],
        "socket": f"/ws/models/{quote(name, safe='')}/log/",
        "page": (page := page_of(request, examples(model), EXAMPLES)),
        "examples": [(row, misfit(row, signature)) for row in page],
        "golden_fits": golden_fits,
        "play": {
            "model": name,
            "state": head["summary"].state,
            "signature": signature,
            "max_batch": fields.get("max_batch_size", 0),
            "own_signatures": not fields.get("inputs"),
            "addresses": _rest_addresses(name, streams=traits.decoupled),
            "server": addresses,
            "servers": {one.name: {"http": one.http_url, "grpc": one.grpc_url} for one in shown},
            "local": LOCAL,
            "handler": handler,
            **facts,
            "archive_versions": head["summary"].archive_versions,
            "log": reverse("model_log", args=[name]),
            "token": settings.REQUIRE_TOKENS,
            "labels": output_labels(name),
            "decoupled": traits.decoupled,
            "sequence": traits.sequence,
        },
    }
    return respond(request, "playground/playground", context, parts=("examples",))


def _offered(request: HttpRequest, numbers: list[int]) -> list[int]:
    """Return the newest published versions, and the versions that the address names."""
    named = request.GET.get("versions", request.GET.get("version", "")).split(",")
    return [one for place, one in enumerate(numbers) if place < SELECTABLE or str(one) in named]


def _choices(numbers: list[int], live: list[int], aliases: dict[str, int], own: Mapping[int, str]) -> list[Choice]:
    """Return the choices: the server's own choice, every published version, and every alias except DEFAULT.

    own: version number -> the version that its archive states.
    """
    serves = aliases.get(DEFAULT, max(live, default=None))
    labels = {number: f"{number} ({own[number]})" if number in own else str(number) for number in numbers}
    first = Choice("", "Server's choice" + ("" if serves is None else f" · version {labels.get(serves, serves)}"))
    versions = [
        Choice(str(number), f"Version {labels[number]}{' · live' if number in live else ''}") for number in numbers
    ]
    named = [
        Choice(alias, f"{alias} · version {labels.get(number, number)}")
        for alias, number in sorted(aliases.items())
        if alias != DEFAULT
    ]
    return [first, *versions, *named]


def _chosen(request: HttpRequest, choices: list[Choice]) -> list[str]:
    """Return the name in ?version=3, or the two names to compare in ?versions=3,champion, without unknown names."""
    known = {choice.name for choice in choices}
    given = request.GET.get("versions", request.GET.get("version", "")).split(",")
    names = [name for name in ("" if one.strip() == DEFAULT else one.strip() for one in given) if name in known]
    return names[:2] or [""]


def _version(published: list[Version], name: str, live: list[int], aliases: dict[str, int]) -> Version | None:
    """Return the published version that a number, an alias or "" (the default) selects, else the newest published version."""
    number = int(name) if name.isdecimal() else aliases.get(name or DEFAULT, max(live, default=None))
    return next((row for row in published if row.number == number), published[0] if published else None)


def _rest_addresses(name: str, *, streams: bool) -> dict[str, str]:
    """Return the page's REST addresses; the page replaces VERSION in one. streams: whether the model streams responses."""
    kind = "infer_stream" if streams else "infer"
    return {
        "infer": reverse(f"api_model_{kind}", args=[name]),
        "version": reverse(f"api_version_{kind}", args=[name, "VERSION"]),
        "model": reverse("api_model", args=[name]),
        "examples": reverse("api_examples", args=[name]),
        "golden_checks": reverse("api_golden_checks", args=[name]),
        "class_names": reverse("api_class_names", args=[name]),
        "traffic": reverse("api_traffic_sample", args=[name]),
    }


def _addresses(shown: Sequence[Server]) -> dict[str, str]:
    """Return the addresses of the first server; "" for a protocol that it does not serve."""
    if not shown:
        return {"http": "", "grpc": ""}
    server = shown[0]
    others = {one.name: one.address() for one in client_protocols()}
    return {"http": server.http_url, "grpc": server.grpc_url, **others}


def _asks_handler(version: Version | None, signature: Signature) -> bool:
    """Return whether a handler of an archive answers: then request and answer are bytes with a content type."""
    tensors = [*signature.get("inputs", []), *signature.get("outputs", [])]
    is_data = [(row["name"], row["datatype"]) for row in tensors] == [("data", "BYTES")] * 2
    return is_data and version is not None and "archive" in version.details
