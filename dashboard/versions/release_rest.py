"""Releases over REST: the list, one release, previewing and going back, aliases, comparing."""

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
        """The releases of a model, with the reports of servers about them, newest first."""
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
        """The changes of going back to this release, and the reasons if that is impossible."""
        model = select.model_get(name)
        return Response(serializers.GoingBackSerializer(going_back(model, release_get(model, number))).data)

    @fieldless(responses={201: serializers.ReleaseDetailSerializer})
    def post(self, request: Request, name: str, number: int) -> Response:
        """Makes a release with the versions and the configuration of this one."""
        model = select.model_get(name)
        made = release_go_back(model=model, release=release_get(model, number), actor=self.actor)
        return _release(name, made.number, status=201)


@at("models/<str:name>/go_back", "api_model_go_back")
class ModelGoBack(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=ModelSummarySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Goes back to the last release that served well before the wanted one."""
        release_go_back(model=select.model_get(name), actor=self.actor)
        return summary_response(name)


@at("models/<str:name>/aliases", "api_aliases")
class Aliases(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.AliasesSerializer)
    def get(self, request: Request, name: str) -> Response:
        """The aliases: names that requests can use in place of the numbers of versions."""
        return _aliases(name)

    @extend_schema(request=serializers.AliasesRequestSerializer, responses=serializers.AliasesSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Gives versions these aliases and no others, in a new release. Versions that get an alias are served, too. With
        base_release, later changes of other aliases stay, and the answer is 409 if somebody moved the same aliases."""
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
        """Two versions or releases side by side: their differences, and how each of them served in the last 24 hours."""
        model = select.model_get(name)
        found = comparison(model, request.query_params.get("a", ""), request.query_params.get("b", ""))
        return Response(serializers.ComparisonSerializer(found).data)


def _release(name: str, number: int, status: int = 200) -> Response:
    life = lives_of([release_get(select.model_get(name), number)])[0]
    return Response(serializers.ReleaseDetailSerializer(life).data, status=status)


def _aliases(name: str) -> Response:
    newest = newest_release(select.model_get(name))
    return Response({"aliases": newest.aliases if newest else {}, "release": newest.number if newest else 0})
