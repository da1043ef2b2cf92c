"""Trying a model in the browser: a form made from its signature, and the same request as code."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.authorisation import Right, requires
from dashboard.choices import VersionState
from dashboard.models import Version
from dashboard.selectors import models as select
from dashboard.selectors.servers import servers
from dashboard.services.configuration import config_preview
from dashboard.services.labels import output_labels
from dashboard.views.common import respond
from dashboard.views.models import model_context
from repository import model_config
from repository.errors import InvalidConfig

SNIPPETS = (("curl", "curl"), ("http", "Python, HTTP"), ("grpc", "Python, gRPC"))


@require_GET
@requires(Right.VIEW)
def model_playground(request: HttpRequest, name: str) -> HttpResponse:
    context = model_context(name, "playground")
    model, live = context["model"], context["summary"].live_versions
    published = [row for row in select.versions(model) if row.state == VersionState.PUBLISHED]
    version = _chosen(published, request.GET.get("version", ""), live)
    preview = config_preview(model_name=name)
    fields, traits = preview.fields, _traits(preview.text)
    signature = _signature(version, fields)
    context |= {
        "signature": signature,
        "version_numbers": [row.number for row in published],
        "version_now": version.number if version else None,
        "snippet_kinds": [row for row in SNIPPETS if row[0] == "grpc" or not traits["decoupled"]],
        "play": {
            "model": name,
            "version": version.number if version else None,
            "live": live,
            "signature": signature,
            "max_batch_size": fields.get("max_batch_size", 0),
            "infer": _infer_address(name, version, live),
            "server": _addresses(),
            "token": settings.REQUIRE_TOKENS,
            "labels": output_labels(name),
            **traits,
        },
    }
    return respond(request, "model/playground", context)


def _traits(text: str) -> dict[str, bool]:
    """What of a model changes how it is asked. A text with mistakes has none: the server goes on with what it has."""
    try:
        config = model_config.parse(text)
    except InvalidConfig:
        config = ModelConfig()
    return {
        "decoupled": config.model_transaction_policy.decoupled,
        "sequence": config.HasField("sequence_batching"),
    }


def _chosen(published: list[Version], wanted: str, live: list[int]) -> Version | None:
    by_number = {str(row.number): row for row in published}
    preferred = [wanted, *(str(number) for number in sorted(live, reverse=True))]
    return next((by_number[number] for number in preferred if number in by_number), published[0] if published else None)


def _signature(version: Version | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The configuration's, which is what the server checks; where it names no tensors, the version's own."""
    batch = [-1] if fields.get("max_batch_size") else []
    own = version.signature if version is not None else {}
    return {
        side: [
            {"name": row["name"], "datatype": _wire_type(row["data_type"]), "shape": [*batch, *row["dims"]]}
            for row in fields.get(side, [])
        ]
        or own.get(side, [])
        for side in ("inputs", "outputs")
    }


def _wire_type(name: str) -> str:
    """TYPE_STRING is BYTES on the wire."""
    return "BYTES" if name == "STRING" else name


def _infer_address(name: str, version: Version | None, live: list[int]) -> str:
    """With the version only when it is not the one that the server chooses by itself."""
    if version is None or not live or version.number == max(live):
        return reverse("api_model_infer", args=[name])
    return reverse("api_version_infer", args=[name, version.number])


def _addresses() -> dict[str, str]:
    server = servers().first()
    return {"http": server.http_url, "grpc": server.grpc_url} if server else {"http": "", "grpc": ""}
