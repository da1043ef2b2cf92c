"""What a load request brings in place of the folder's own configuration: a release that is not the one on disk."""

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Release
from dashboard.releases.storage import managed_repository, on_disk
from repository.config import model_config, version_policy
from repository.core.errors import RepositoryError


def override_of(release: Release) -> str:
    """Return the configuration of a release, as JSON, with its versions named: others that came since are not served by it.

    "" for a text with mistakes.
    """
    try:
        config = model_config.parse(release.text)
    except RepositoryError:
        return ""
    if release.versions:
        version_policy.set_specific(config, release.versions)
    return _json(config)


def wanted_override(release: Release) -> str:
    """Return what a load of the wanted release has to bring: "" where what lies on disk is that release.

    With it a server that restarts after config.pbtxt was edited, or a version was added, by hand serves what it served before.
    Files of a version that were changed in place are not brought back this way.
    """
    model = release.model
    known = model.published_numbers()
    if not known:
        return ""
    foreign = set(managed_repository().versions(model.name)) - set(known)
    if not foreign and on_disk(model.name).document.same_text(release.document):
        return ""
    try:
        config = model_config.parse(release.text)
    except RepositoryError:
        return ""
    if foreign and (chosen := version_policy.select(config, known)):
        version_policy.set_specific(config, chosen)
    return _json(config)


def _json(config: ModelConfig) -> str:
    return json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
