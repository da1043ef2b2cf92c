"""What a server is told to load where somebody has changed a model's folder by hand."""

from google.protobuf import json_format

from dashboard.catalog.storage import disk_text, managed_repository
from dashboard.models import Model
from dashboard.shared.choices import VersionState
from repository.config import model_config, version_policy
from repository.core.errors import RepositoryError


def adopted_override(*, model_id: int) -> str:
    """Return a configuration, as JSON, for the load request; "" where what lies on disk is what a person adopted.

    With it a server that restarts after config.pbtxt was edited, or a version was added, by hand serves what it served before.
    Files of a version that were changed in place are not brought back this way.
    """
    model = Model.objects.get(pk=model_id)
    revision = model.revisions.first()
    known = set(model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))
    if revision is None or not known:
        return ""
    foreign = set(managed_repository().versions(model.name)) - known
    if not foreign and (disk_text(model.name) or "") == revision.text:
        return ""
    try:
        config = model_config.parse(revision.text)
    except RepositoryError:
        return ""
    if foreign and (chosen := version_policy.select(config, known)):
        config.version_policy.specific.versions[:] = chosen
    return json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
