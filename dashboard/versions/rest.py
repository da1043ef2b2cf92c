"""Versions over REST: the list, one of them, make live, archive, restore."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.jobs.rest import after_job
from dashboard.jobs.serializers import JobSerializer
from dashboard.versions import serializers
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.services import release_promote, version_annotate
from dashboard.web.rest.endpoint import Endpoint, data_of

_MOVED = {200: serializers.VersionSerializer, 202: JobSerializer}


class VersionList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="models_versions_list", responses=serializers.VersionSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """Every version of a model, newest first."""
        return self.page(select.versions(select.model_get(name)), serializers.VersionSerializer)


class VersionDetail(Endpoint):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE}

    @extend_schema(responses=serializers.VersionSerializer)
    def get(self, request: Request, name: str, number: int) -> Response:
        """One version, with its files and signature."""
        return _version(name, number)

    @extend_schema(request=serializers.NoteSerializer, responses=serializers.VersionSerializer)
    def patch(self, request: Request, name: str, number: int) -> Response:
        """Changes the note."""
        note = data_of(request, serializers.NoteSerializer)["note"]
        version_annotate(version=select.version_get(select.model_get(name), number), actor=self.actor, note=note)
        return _version(name, number)


class VersionMakeLive(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=serializers.MakeLiveSerializer, responses=serializers.VersionSerializer)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Makes a release that serves this version alone, with the present configuration or with `text`."""
        given = data_of(request, serializers.MakeLiveSerializer)
        release_promote(version=select.version_get(select.model_get(name), number), actor=self.actor, **given)
        return _version(name, number)


class VersionArchive(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=None, responses=_MOVED)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Takes a version out of the repository that nothing needs; its files are kept. To another disk, a large version
        goes as a job: 202."""
        job = version_archive(version=select.version_get(select.model_get(name), number), actor=self.actor)
        return after_job(job, lambda: _version(name, number))


class VersionRestore(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=None, responses=_MOVED)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Brings an archived version back. A large one comes as a job: 202."""
        job = version_restore(version=select.version_get(select.model_get(name), number), actor=self.actor)
        return after_job(job, lambda: _version(name, number))


def _version(name: str, number: int) -> Response:
    return Response(serializers.VersionSerializer(select.version_get(select.model_get(name), number)).data)
