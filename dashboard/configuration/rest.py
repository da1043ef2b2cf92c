"""Configurations over REST: previewing and applying them, and adopting or overwriting changes by hand."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.catalog.rest import summary_response
from dashboard.catalog.serializers import ModelSummarySerializer
from dashboard.configuration import serializers
from dashboard.configuration.class_names import class_names_set
from dashboard.configuration.drift import drift_adopt, drift_overwrite, model_adopt
from dashboard.configuration.services import config_apply, config_preview, fields_in
from dashboard.models import Model
from dashboard.releases.selectors import newest_release
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from repository.config.document import NOTHING, Document


@at("models/<str:name>/config", "api_config")
class Config(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.ConfigSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The adopted config.pbtxt, as text and as fields."""
        return _config(select.model_get(name))

    @extend_schema(request=serializers.ConfigChangeSerializer, responses=serializers.ConfigSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Applies a text. With base_release, the answer is 409 if the configuration has another text by now."""
        model = select.model_get(name)
        data = data_of(request, serializers.ConfigChangeSerializer)
        config_apply(model=model, actor=self.actor, document=Document.read(data.pop("text")), **data)
        return _config(model)


@at("models/<str:name>/class_names", "api_class_names")
class ClassNames(Endpoint):
    rights = {"PUT": Right.OPERATE}

    @extend_schema(request=serializers.ClassNamesSerializer, responses=serializers.ConfigSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Names the classes of an output for everybody, by index, in a release that needs no reload."""
        model = select.model_get(name)
        class_names_set(model=model, actor=self.actor, **data_of(request, serializers.ClassNamesSerializer))
        return _config(model)


@at("models/<str:name>/config/preview", "api_config_preview")
class ConfigPreview(Endpoint):
    rights = {"POST": Right.VIEW}

    @extend_schema(request=serializers.ConfigPreviewRequestSerializer, responses=serializers.ConfigPreviewSerializer)
    def post(self, request: Request, name: str) -> Response:
        """The configuration that a text or a form makes, its problems, and the effect of applying it."""
        data = data_of(request, serializers.ConfigPreviewRequestSerializer)
        base, document = (Document.read(data[key]) if key in data else None for key in ("base", "text"))
        found = config_preview(model_name=name, base=base, document=document, fields=data.get("fields"))
        return Response(serializers.ConfigPreviewSerializer(found).data)


@at("models/<str:name>/config/adopt", "api_config_adopt")
class DriftAdopt(Endpoint):
    rights = {"POST": Right.UPLOAD_CODE}

    @fieldless(responses=serializers.ConfigSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Adopts the changes on disk as a release."""
        model = select.model_get(name)
        drift_adopt(model=model, actor=self.actor)
        return _config(model)


@at("models/<str:name>/config/overwrite", "api_config_overwrite")
class DriftOverwrite(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=serializers.ConfigSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Writes the adopted text over the text on disk."""
        model = select.model_get(name)
        drift_overwrite(model=model, actor=self.actor)
        return _config(model)


def _config(model: Model) -> Response:
    model.refresh_from_db()
    release = newest_release(model)
    document = release.document if release else NOTHING
    body = {
        "release": release.number if release else 0,
        "text": document.text,
        "fields": fields_in(document),
        "drift": model.drift,
    }
    return Response(body)


@at("models/<str:name>/adopt", "api_model_adopt")
class ModelAdopt(Endpoint):
    rights = {"POST": Right.UPLOAD_CODE}

    @fieldless(responses={201: ModelSummarySerializer})
    def post(self, request: Request, name: str) -> Response:
        """Makes a model of a folder that was copied into the repository. The model is not loaded."""
        model_adopt(name=name, actor=self.actor)
        return summary_response(name, status=201)
