"""The page that tries a model: a form made from its signature, and the same request as code."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from dashboard.access.authorisation import Right, requires
from dashboard.catalog import selectors as select
from dashboard.catalog.pages import model_context
from dashboard.catalog.traits import traits_of
from dashboard.configuration.fields import Fields, TensorFields
from dashboard.configuration.services import config_preview
from dashboard.models import Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.playground.labels import output_labels
from dashboard.servers.selectors import servers
from dashboard.shared.choices import VersionState
from dashboard.web.pages import respond

SNIPPETS = (("curl", "curl"), ("http", "Python, HTTP"), ("grpc", "Python, gRPC"))


@require_GET
@requires(Right.VIEW)
def model_playground(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "playground")
    model, live = head["model"], head["summary"].live_versions
    published = [row for row in select.versions(model) if row.state == VersionState.PUBLISHED]
    version = _chosen(published, request.GET.get("version", ""), live)
    preview = config_preview(model_name=name)
    fields, traits = preview.fields, traits_of(preview.text)
    signature = _signature(version, fields)
    context = {
        **head,
        "signature": signature,
        "version_numbers": [row.number for row in published],
        "version_now": version.number if version else None,
        "snippet_kinds": [row for row in SNIPPETS if row[0] == "grpc" or not traits.decoupled],
        "play": {
            "model": name,
            "version": version.number if version else None,
            "live": live,
            "signature": signature,
            "infer": _infer_address(name, version, live),
            "server": _addresses(),
            "token": settings.REQUIRE_TOKENS,
            "labels": output_labels(name),
            "decoupled": traits.decoupled,
            "sequence": traits.sequence,
        },
    }
    return respond(request, "playground/playground", context)


def _chosen(published: list[Version], wanted: str, live: list[int]) -> Version | None:
    by_number = {str(row.number): row for row in published}
    preferred = [wanted, *(str(number) for number in sorted(live, reverse=True))]
    return next((by_number[number] for number in preferred if number in by_number), published[0] if published else None)


def _signature(version: Version | None, fields: Fields) -> Signature:
    """Return the tensors of the configuration, by which the server checks requests; where it names none, the version's own."""
    batch = [-1] if fields.get("max_batch_size") else []
    own: Signature = version.signature if version is not None else {}
    return {
        "inputs": _tensors(fields.get("inputs", []), batch) or own.get("inputs", []),
        "outputs": _tensors(fields.get("outputs", []), batch) or own.get("outputs", []),
    }


def _tensors(rows: list[TensorFields], batch: list[int]) -> list[TensorRow]:
    return [
        {"name": row["name"], "datatype": _wire_type(row["data_type"]), "shape": [*batch, *row["dims"]]} for row in rows
    ]


def _wire_type(name: str) -> str:
    """Return V2's name of a configuration's data type: they differ for TYPE_STRING, which is BYTES."""
    return "BYTES" if name == "STRING" else name


def _infer_address(name: str, version: Version | None, live: list[int]) -> str:
    """Return the address; it names the version only where that is not the one that the server chooses by itself."""
    if version is None or not live or version.number == max(live):
        return reverse("api_model_infer", args=[name])
    return reverse("api_version_infer", args=[name, version.number])


def _addresses() -> dict[str, str]:
    server = servers().first()
    return {"http": server.http_url, "grpc": server.grpc_url} if server else {"http": "", "grpc": ""}
