"""The files of an artefact in an OCI registry: a release that another installation has exported, an artefact of ModelPack, or
what `oras push` sends. A tag is resolved once, so that all files are of one manifest. A blob is read from where it broke off.

Source: OCI Image Specification 1.1, "Image Manifest"; CNCF ModelPack, model-spec 0.0.7 (docs/spec.md).
"""

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from dashboard.shared.exceptions import Invalid
from dashboard.uploads.sources.base import (
    Field,
    Pieces,
    Place,
    Source,
    SourceFile,
    model_name_of,
    refuse_too_many,
    required,
)
from dashboard.uploads.sources.registry_client import (
    FILE_PATH,
    TITLE,
    Reference,
    Registry,
    json_object,
    parse_reference,
)
from dashboard.uploads.sources.triton import belongs, version_among
from dashboard.uploads.sources.url import read_web_file

_ADDRESS = Field("address", "Artefact", "{place}/digits:3", "As for oras and docker: registry, repository and tag.")
_VERSION = Field("version", "Version", "3", "If it holds several versions; the highest one if it is empty.", False)
_PACKED = ("+gzip", "+zstd")
_MODEL_PACK = "application/vnd.cncf.model."  # `oras push` calls files without a media type "tar", so only these mean it


class OciRegistry(Source):
    name, label, setting = "registry", "an OCI registry", "SLIPWAY_SOURCE_REGISTRIES"
    fields = (_ADDRESS, _VERSION)

    def allowed_places(self) -> list[str]:
        return [one.partition("://")[2] for one in settings.SOURCE_REGISTRIES]

    def located(self, asked: Mapping[str, str]) -> Place:
        reference = _reference(required(asked, _ADDRESS))
        if not reference.tag and not reference.digest:
            raise Invalid.at("address", "the address needs a tag such as :3, or a digest")
        content, digest = _registry(reference).manifest(reference.digest or reference.tag)
        chosen = version_among(_listed(content), required(asked, _VERSION))
        return {"address": reference._replace(digest=digest).text(), "version": chosen}

    def files(self, place: Place) -> list[SourceFile]:
        reference = _reference(place["address"])
        rows = _listed(_registry(reference).manifest(reference.digest)[0])
        return [row for row in rows if not place["version"] or belongs(row, place["version"])]

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        registry = _registry(_reference(place["address"]))
        # The digest is the name of the content, so no ETag is compared.
        return read_web_file(
            registry.location(f"blobs/{file.token}"),
            registry.allowed,
            file._replace(token=""),
            offset,
            registry.secrets(),
        )

    def proposed_name(self, place: Place) -> str:
        return model_name_of(_reference(place["address"]).repository)


def _reference(address: str) -> Reference:
    return parse_reference(address, settings.SOURCE_REGISTRIES, OciRegistry.setting)


def _registry(reference: Reference) -> Registry:
    return Registry(reference, settings.SOURCE_REGISTRIES)


def _listed(manifest: bytes) -> list[SourceFile]:
    """Return the files of a manifest. Raises Invalid if it is not of an artefact with a layer for each file."""
    found = json_object(manifest)
    if "manifests" in found:
        raise Invalid("this address names an index of several artefacts; name one of them by its digest")
    layers = found.get("layers")
    if not isinstance(layers, list):
        raise Invalid("this artefact has no layers, so it holds no files")
    refuse_too_many(len(layers))
    rows = [_described(layer) for layer in layers if isinstance(layer, dict)]
    if not rows:
        raise Invalid("this artefact has no layers, so it holds no files")
    return sorted(rows)


def _described(layer: Mapping[str, Any]) -> SourceFile:
    annotations = layer.get("annotations")
    names = annotations if isinstance(annotations, dict) else {}
    name, kind = names.get(FILE_PATH) or names.get(TITLE), str(layer.get("mediaType", ""))[:100]
    digest, size = str(layer.get("digest", "")), layer.get("size")
    if not isinstance(name, str) or not name:
        raise Invalid("a layer of this artefact has no file name; a container image cannot be fetched as a model")
    packed = kind.endswith(_PACKED) or (kind.startswith(_MODEL_PACK) and kind.endswith(".tar"))
    if packed or names.get("io.deis.oras.content.unpack") == "true":
        raise Invalid(f"'{name[:200]}' is packed in this artefact ({kind}); push its files unpacked, a layer for each")
    algorithm, _, sha256 = digest.partition(":")
    if algorithm != "sha256" or len(sha256) != 64 or type(size) is not int or size < 0:
        raise Invalid(f"the manifest does not give '{name[:200]}' a size and a SHA-256")
    return SourceFile(name, size, digest, sha256)
