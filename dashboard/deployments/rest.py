"""Deployments over REST: list, start, stop, continue, go back."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.deployments import services
from dashboard.deployments.selectors import deployment_get, deployments
from dashboard.deployments.serializers import DeploymentRequestSerializer, DeploymentSerializer
from dashboard.fleet.selectors import environment_get
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("environments/<str:name>/deployments", "api_environment_deployments")
class DeploymentList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(operation_id="environments_deployments_list", responses=DeploymentSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The deployments of an environment, the newest first, each with its servers in their order."""
        return self.page(deployments(environment_get(name)), DeploymentSerializer)

    @extend_schema(request=DeploymentRequestSerializer, responses={201: DeploymentSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Starts to bring a release to the servers of an environment, one group after another."""
        given = data_of(request, DeploymentRequestSerializer)
        environment, model = environment_get(name), model_get(given.pop("model"))
        made = services.deployment_start(environment=environment, model=model, actor=self.actor, **given)
        return Response(_shown(made.pk), status=201)


@at("deployments/<int:pk>", "api_deployment")
class DeploymentDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=DeploymentSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """One deployment, with its servers in their order."""
        return Response(_shown(pk))


@at("deployments/<int:pk>/stop", "api_deployment_stop")
class DeploymentStop(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=DeploymentSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Reaches no further server."""
        services.deployment_stop(deployment=deployment_get(pk), actor=self.actor)
        return Response(_shown(pk))


@at("deployments/<int:pk>/continue", "api_deployment_continue")
class DeploymentContinue(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=DeploymentSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Goes on with a stopped deployment. The server that failed is tried again."""
        services.deployment_continue(deployment=deployment_get(pk), actor=self.actor)
        return Response(_shown(pk))


@at("deployments/<int:pk>/go-back", "api_deployment_go_back")
class DeploymentGoBack(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=DeploymentSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Ends a deployment: every server that was reached serves the earlier release again, all at once."""
        services.deployment_return(deployment=deployment_get(pk), actor=self.actor)
        return Response(_shown(pk))


def _shown(pk: int) -> object:
    return DeploymentSerializer(deployment_get(pk)).data
