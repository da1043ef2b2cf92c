"""Versions over REST: the list, one version, make live, archive, restore."""

from functools import partial

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.catalog.archives import archive_of
from dashboard.configuration.version_settings import fields_of_version, version_settings_apply
from dashboard.jobs.rest import after_job
from dashboard.jobs.serializers import JobSerializer
from dashboard.models import Model, Version
from dashboard.releases.selectors import newest_release, protected_versions
from dashboard.versions import serializers
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.promotion import promotion
from dashboard.versions.retention import retention_set
from dashboard.versions.services import release_promote, version_annotate
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from repository.config.document import Document

_MOVED = {200: serializers.VersionSerializer, 202: JobSerializer}


@at("models/<str:name>/versions", "api_versions")
class VersionList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="models_versions_list", responses=serializers.VersionSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """Every version of a model, newest first."""
        model = select.model_get(name)
        return self.page(select.versions(model), serializers.VersionSerializer, partial(_with_protection, model))


@at("models/<str:name>/versions/<int:number>", "api_version")
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


@at("models/<str:name>/versions/<int:number>/settings", "api_version_settings")
class VersionSettings(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.VersionSettingsSerializer)
    def get(self, request: Request, name: str, number: int) -> Response:
        """The settings of one version that replace the model's, and the values that apply without them."""
        return _settings(name, number)

    @extend_schema(request=serializers.VersionSettingsChangeSerializer, responses=serializers.VersionSettingsSerializer)
    def put(self, request: Request, name: str, number: int) -> Response:
        """Changes settings of this version alone, in a new release. A null removes a setting, so that the model's applies.

        Settings that are left out do not change.
        """
        given = data_of(request, serializers.VersionSettingsChangeSerializer)
        version = select.version_get(select.model_get(name), number)
        base = given.pop("base_release")
        version_settings_apply(version=version, fields=given, actor=self.actor, base_release=base)
        return _settings(name, number)


@at("models/<str:name>/versions/<int:number>/make_live", "api_version_make_live")
class VersionMakeLive(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(responses=serializers.PromotionSerializer)
    def get(self, request: Request, name: str, number: int) -> Response:
        """The changes of making this version live, for clients and in the configuration, and the configuration that fits it."""
        found = promotion(select.version_get(select.model_get(name), number))
        return Response(serializers.PromotionSerializer(found).data)

    @extend_schema(request=serializers.MakeLiveSerializer, responses=serializers.VersionSerializer)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Makes a release that serves this version alone, with the present configuration or with `text`."""
        given = data_of(request, serializers.MakeLiveSerializer)
        document = Document.read(given["text"]) if "text" in given else None
        version = select.version_get(select.model_get(name), number)
        release_promote(
            version=version, actor=self.actor, document=document, load=given["load"], override=given["override"]
        )
        return _version(name, number)


@at("models/<str:name>/versions/<int:number>/model_archive", "api_model_archive")
class ModelArchive(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[
            OpenApiParameter("file", str, description="A text of the archive, in place of the handler's source.")
        ],
        responses=serializers.ModelArchiveSerializer,
    )
    def get(self, request: Request, name: str, number: int) -> Response:
        """The contents of a version's archive: manifest, settings, files, and the handler's source up to 64 KiB."""
        version = select.version_get(select.model_get(name), number)
        archive = archive_of(version, request.query_params.get("file", ""))
        return Response(serializers.ModelArchiveSerializer(archive).data)


@at("models/<str:name>/versions/<int:number>/archive", "api_version_archive")
class VersionArchive(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=_MOVED)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Archives a version that nothing needs, and keeps its files.

        If a large version has to move to another disk, a job moves it, and the answer is 202.
        """
        job = version_archive(version=select.version_get(select.model_get(name), number), actor=self.actor)
        return after_job(job, lambda: _version(name, number))


@at("models/<str:name>/versions/<int:number>/restore", "api_version_restore")
class VersionRestore(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=_MOVED)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Restores an archived version. If it is large, a job restores it, and the answer is 202."""
        job = version_restore(version=select.version_get(select.model_get(name), number), actor=self.actor)
        return after_job(job, lambda: _version(name, number))


@at("models/<str:name>/retention", "api_retention")
class ModelRetention(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.RetentionSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The rule for the versions that stay in the repository; {} if all of them stay."""
        return Response(select.model_get(name).retention)

    @extend_schema(request=serializers.RetentionSerializer, responses=serializers.RetentionSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Keeps the newest `count` versions and all of the last `days`; others are archived. With neither number, all stay."""
        rule = data_of(request, serializers.RetentionSerializer)
        return Response(retention_set(model=select.model_get(name), actor=self.actor, **rule).retention)


def _version(name: str, number: int) -> Response:
    model = select.model_get(name)
    [version] = _with_protection(model, [select.version_get(model, number)])
    return Response(serializers.VersionSerializer(version).data)


def _settings(name: str, number: int) -> Response:
    version = select.version_get(select.model_get(name), number)
    body = {
        "release": newest.number if (newest := newest_release(version.model)) else 0,
        "settings": fields_of_version(version),
    }
    return Response(serializers.VersionSettingsSerializer(body).data)


def _with_protection(model: Model, rows: list[Version]) -> list[Version]:
    """Return versions with the fields of VersionSerializer that are no columns."""
    why = protected_versions(model)
    for version in rows:
        version.protected = why.get(version.number, "")  # type: ignore[attr-defined]  # for the serializer alone
    return rows
