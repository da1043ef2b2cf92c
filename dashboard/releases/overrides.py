"""The configuration that a load request sends in place of the folder's, for a release that is not on disk."""

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Release
from dashboard.releases.storage import managed_repository, on_disk
from repository.config import version_policy
from repository.config.release import set_release


def override_of(release: Release) -> str:
    """Return the configuration of a release, as JSON, with its versions named, so that later versions are not served.

    The result is "" if the text has mistakes.
    """
    return _override(release, release.versions)


def wanted_override(release: Release) -> str:
    """Return the configuration that a load of the wanted release sends; "" if that release is on disk.

    With it, a server that restarts after config.pbtxt was edited, or a version was added by hand, still serves the wanted
    release. It does not undo changes to the files of a version.
    """
    model, document = release.model, release.document
    known = model.published_numbers()
    if not known:
        return ""
    foreign = set(managed_repository().versions(model.name)) - set(known)
    if not foreign and on_disk(model.name).document.same_text(document):
        return ""
    return _override(release, document.versions(known) if foreign else [])


def _override(release: Release, versions: list[int]) -> str:
    """Return the configuration with the release's number; it names `versions` if there are any."""
    if release.document.mistake:
        return ""
    config = ModelConfig()
    config.CopyFrom(release.document.message)
    if release.text:
        set_release(config, release.number)
    if versions:
        version_policy.set_specific(config, versions)
    return json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
