from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.catalog.services import model_delete, model_describe, model_load, model_unload
from dashboard.configuration.drift import model_adopt, unmanaged_models
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.services import (
    version_annotate,
    version_make_live,
    version_roll_back,
)
from dashboard.web.rest import serializers
from dashboard.web.rest.endpoint import Endpoint, after_job, data_of

_MOVED = {200: serializers.VersionSerializer, 202: serializers.JobSerializer}


class ModelList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="models_list",
        parameters=[OpenApiParameter("search", str), OpenApiParameter("tag", str)],
        responses=serializers.ModelSummarySerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Every model, with its state and what it serves."""
        rows = select.models_overview(
            search=request.query_params.get("search", ""), tag=request.query_params.get("tag", "")
        )
        return self.page(rows, serializers.ModelSummarySerializer)


class Unmanaged(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="repository_unmanaged", responses=serializers.UnmanagedSerializer)
    def get(self, request: Request) -> Response:
        """Folders that somebody copied into the repository and that are not managed yet."""
        return Response({"names": unmanaged_models()})


class ModelAdopt(Endpoint):
    rights = {"POST": Right.UPLOAD_CODE}

    @extend_schema(request=None, responses={201: serializers.ModelSummarySerializer})
    def post(self, request: Request, name: str) -> Response:
        """Takes such a folder under management. It is not loaded by that."""
        model_adopt(name=name, actor=self.actor)
        return _summary(name, status=201)


class ModelDetail(Endpoint):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE, "DELETE": Right.OPERATE}

    @extend_schema(responses=serializers.ModelSummarySerializer)
    def get(self, request: Request, name: str) -> Response:
        return _summary(name)

    @extend_schema(request=serializers.ModelChangeSerializer, responses=serializers.ModelSummarySerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Changes description and tags."""
        data = data_of(request, serializers.ModelChangeSerializer)
        model_describe(model=select.model_get(name), actor=self.actor, **data)
        return _summary(name)

    @extend_schema(
        parameters=[OpenApiParameter("confirm", str, required=True, description="The model's name.")],
        responses={204: None},
    )
    def delete(self, request: Request, name: str) -> Response:
        """Removes an unloaded model with all its files."""
        confirm = request.query_params.get("confirm", "")
        model_delete(model=select.model_get(name), actor=self.actor, confirm_name=confirm)
        return Response(status=204)


class ModelLoad(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=None, responses=serializers.ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Asks for the model to be served; its state says when it is."""
        model_load(model=select.model_get(name), actor=self.actor)
        return _summary(name)


class ModelUnload(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=None, responses=serializers.ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        model_unload(model=select.model_get(name), actor=self.actor)
        return _summary(name)


class ModelRollBack(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=serializers.RollBackSerializer, responses=serializers.ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Returns to a version, by default to the one that was served before the present one."""
        model, number = select.model_get(name), data_of(request, serializers.RollBackSerializer).get("version")
        version = select.version_get(model, number) if number else None
        version_roll_back(model=model, actor=self.actor, version=version)
        return _summary(name)


class ModelReleases(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="models_releases_list", responses=serializers.ReleaseSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """Which versions were served from when, newest first."""
        return self.page(select.releases(select.model_get(name)), serializers.ReleaseSerializer)


class VersionList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="models_versions_list", responses=serializers.VersionSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        return self.page(select.versions(select.model_get(name)), serializers.VersionSerializer)


class VersionDetail(Endpoint):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE}

    @extend_schema(responses=serializers.VersionSerializer)
    def get(self, request: Request, name: str, number: int) -> Response:
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
        """Serves this version alone."""
        load = data_of(request, serializers.MakeLiveSerializer)["load"]
        version_make_live(version=select.version_get(select.model_get(name), number), actor=self.actor, load=load)
        return _version(name, number)


class VersionArchive(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=None, responses=_MOVED)
    def post(self, request: Request, name: str, number: int) -> Response:
        """Takes a version that is not live out of the repository; its files are kept. To another disk, a large version
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


def _summary(name: str, status: int = 200) -> Response:
    summary = select.model_summary(select.model_get(name))
    return Response(serializers.ModelSummarySerializer(summary).data, status=status)


def _version(name: str, number: int) -> Response:
    return Response(serializers.VersionSerializer(select.version_get(select.model_get(name), number)).data)
