"""Releases over REST: the list, one of them, what going back would change, going back, aliases, comparing."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog import selectors as select
from dashboard.catalog.rest import summary_response
from dashboard.catalog.serializers import ModelSummarySerializer
from dashboard.releases.going_back import going_back
from dashboard.releases.selectors import lives_of, newest_release, release_get, releases
from dashboard.versions import release_serializers as serializers
from dashboard.versions.compare import comparison
from dashboard.versions.services import aliases_set, release_go_back
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("models/<str:name>/releases", "api_releases")
class ReleaseList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="models_releases_list", responses=serializers.ReleaseSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """What the model was wanted to serve, and what servers told of it, newest first."""
        rows = releases(select.model_get(name)).defer("text", "returns_to__text")
        return self.page(rows, serializers.ReleaseSerializer, lives_of)


@at("models/<str:name>/releases/<int:number>", "api_release")
class ReleaseDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.ReleaseDetailSerializer)
    def get(self, request: Request, name: str, number: int) -> Response:
        """One release, with its text, the report of its checks and when it served."""
        return _release(name, number)


@at("models/<str:name>/releases/<int:number>/go_back", "api_release_go_back")
class ReleaseGoBack(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(responses=serializers.GoingBackSerializer)
    def get(self, request: Request, name: str, number: int) -> Response:
        """What going back to this release would change, and why it cannot work, where it cannot."""
        model = select.model_get(name)
        return Response(serializers.GoingBackSerializer(going_back(model, release_get(model, number))).data)

    @fieldless(responses={201: serializers.ReleaseDetailSerializer})
    def post(self, request: Request, name: str, number: int) -> Response:
        """Makes a release of what this one was: its versions and its configuration together."""
        model = select.model_get(name)
        made = release_go_back(model=model, release=release_get(model, number), actor=self.actor)
        return _release(name, made.number, status=201)


@at("models/<str:name>/go_back", "api_model_go_back")
class ModelGoBack(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Goes back to what served last and well before what is wanted now."""
        release_go_back(model=select.model_get(name), actor=self.actor)
        return summary_response(name)


@at("models/<str:name>/aliases", "api_aliases")
class Aliases(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.AliasesSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The names by which versions can be called in place of their numbers."""
        return _aliases(name)

    @extend_schema(request=serializers.AliasesRequestSerializer, responses=serializers.AliasesSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Gives versions these names and no others, as a release. The versions that get a name are served, too. With
        base_release, what others did to other names since stays, and a 409 says that somebody moved the same ones."""
        given = data_of(request, serializers.AliasesRequestSerializer)
        aliases_set(model=select.model_get(name), actor=self.actor, **given)
        return _aliases(name)


@at("models/<str:name>/compare", "api_compare")
class Compare(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[
            OpenApiParameter("a", required=True, description="A version such as v1, or a release such as r3."),
            OpenApiParameter("b", required=True, description="The other one."),
        ],
        responses=serializers.ComparisonSerializer,
    )
    def get(self, request: Request, name: str) -> Response:
        """Two versions or releases side by side: what differs, and how each of them served in the last 24 hours."""
        model = select.model_get(name)
        found = comparison(model, request.query_params.get("a", ""), request.query_params.get("b", ""))
        return Response(serializers.ComparisonSerializer(found).data)


def _release(name: str, number: int, status: int = 200) -> Response:
    life = lives_of([release_get(select.model_get(name), number)])[0]
    return Response(serializers.ReleaseDetailSerializer(life).data, status=status)


def _aliases(name: str) -> Response:
    newest = newest_release(select.model_get(name))
    return Response({"aliases": newest.aliases if newest else {}, "release": newest.number if newest else 0})
