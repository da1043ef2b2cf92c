"""Deployments over REST: list, start, stop, continue, go back, leave out; what environments ask of releases, and approvals."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.deployments import policies, serializers, services
from dashboard.deployments.selectors import deployment_get, deployments
from dashboard.deployments.serializers import (
    DeploymentDetailSerializer,
    DeploymentRequestSerializer,
    DeploymentSerializer,
)
from dashboard.fleet.selectors import environment_get
from dashboard.releases.selectors import release_get
from dashboard.shared.exceptions import NotFound
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("environments/<str:name>/deployments", "api_environment_deployments")
class DeploymentList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}

    @extend_schema(operation_id="environments_deployments_list", responses=DeploymentSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The deployments of an environment, the newest first."""
        return self.page(deployments(environment_get(name)), DeploymentSerializer)

    @extend_schema(request=DeploymentRequestSerializer, responses={201: DeploymentDetailSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Starts to bring a release to the servers of an environment, one group after another."""
        given = data_of(request, DeploymentRequestSerializer)
        environment, model = environment_get(name), model_get(given.pop("model"))
        made = services.deployment_start(environment=environment, model=model, actor=self.actor, **given)
        return Response(_shown(made.pk), status=201)


@at("deployments", "api_deployments")
class AllDeployments(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="deployments_list", responses=DeploymentSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The deployments of all environments, the newest first."""
        return self.page(deployments(), DeploymentSerializer)


@at("deployments/<int:pk>", "api_deployment")
class DeploymentDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=DeploymentDetailSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """One deployment, with the first servers in their order."""
        return Response(_shown(pk))


@at("deployments/<int:pk>/servers", "api_deployment_servers")
class DeploymentServers(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="deployments_servers_list", responses=serializers.DeploymentServerSerializer(many=True))
    def get(self, request: Request, pk: int) -> Response:
        """The servers of a deployment in their order."""
        rows = deployment_get(pk).steps.select_related("server")
        return self.page(rows, serializers.DeploymentServerSerializer)


@at("deployments/<int:pk>/stop", "api_deployment_stop")
class DeploymentStop(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=DeploymentDetailSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Reaches no further server."""
        services.deployment_stop(deployment=deployment_get(pk), actor=self.actor)
        return Response(_shown(pk))


@at("deployments/<int:pk>/leave-out", "api_deployment_leave_out")
class DeploymentLeaveOut(Endpoint):
    rights = {"POST": Right.OPERATE}

    @extend_schema(request=serializers.LeaveOutSerializer, responses=DeploymentDetailSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Goes on without a server. It serves the earlier release until the deployment is over, and the new one afterwards."""
        given = data_of(request, serializers.LeaveOutSerializer)
        services.deployment_leave_out(deployment=deployment_get(pk), actor=self.actor, **given)
        return Response(_shown(pk))


@at("deployments/<int:pk>/continue", "api_deployment_continue")
class DeploymentContinue(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=DeploymentDetailSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Goes on with a stopped deployment. The server that failed is tried again."""
        services.deployment_continue(deployment=deployment_get(pk), actor=self.actor)
        return Response(_shown(pk))


@at("deployments/<int:pk>/go-back", "api_deployment_go_back")
class DeploymentGoBack(Endpoint):
    rights = {"POST": Right.OPERATE}

    @fieldless(responses=DeploymentDetailSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Ends a deployment: every server that was reached serves the earlier release again, all at once."""
        services.deployment_return(deployment=deployment_get(pk), actor=self.actor)
        return Response(_shown(pk))


@at("environments/<str:name>/policy", "api_environment_policy")
class Policy(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @extend_schema(responses=serializers.PolicySerializer)
    def get(self, request: Request, name: str) -> Response:
        """What an environment asks of a release before it is deployed there; 404 if it asks nothing."""
        found = policies.policy_of(environment_get(name))
        if found is None:
            raise NotFound(f"environment {name[:40]} has no policy")
        return Response(serializers.PolicySerializer(found).data)

    @extend_schema(request=serializers.PolicyRequestSerializer, responses=serializers.PolicySerializer)
    def put(self, request: Request, name: str) -> Response:
        """Says what an environment asks. What is left out is not asked. From then on only deployments change what it wants."""
        given = data_of(request, serializers.PolicyRequestSerializer)
        if given.get("source") is not None:
            given["source"] = environment_get(given["source"])
        made = policies.policy_set(environment=environment_get(name), actor=self.actor, **given)
        return Response(serializers.PolicySerializer(made).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Asks nothing any more."""
        policies.policy_remove(environment=environment_get(name), actor=self.actor)
        return Response(status=204)


@at("environments/<str:name>/requirements/<str:model>/<int:number>", "api_environment_requirements")
class Requirements(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="environments_requirements_list", responses=serializers.RequirementSerializer(many=True)
    )
    def get(self, request: Request, name: str, model: str, number: int) -> Response:
        """What an environment asks of a release if you deploy it there now, and whether it is met; empty if it asks nothing."""
        environment, release = environment_get(name), release_get(model_get(model), number)
        rows = policies.requirements(environment=environment, release=release, actor=self.actor)
        return self.page(rows, serializers.RequirementSerializer)


@at("environments/<str:name>/approvals/<str:model>/<int:number>", "api_environment_approvals")
class Approvals(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE, "DELETE": Right.OPERATE}

    @extend_schema(operation_id="environments_approvals_list", responses=serializers.ApprovalSerializer(many=True))
    def get(self, request: Request, name: str, model: str, number: int) -> Response:
        """Who approved exactly this release for an environment."""
        environment, release = environment_get(name), release_get(model_get(model), number)
        return self.page(policies.approvals(environment, release), serializers.ApprovalSerializer)

    @extend_schema(request=serializers.ApprovalRequestSerializer, responses={201: serializers.ApprovalSerializer})
    def post(self, request: Request, name: str, model: str, number: int) -> Response:
        """Approves a release for an environment. Who made the release cannot."""
        given = data_of(request, serializers.ApprovalRequestSerializer)
        environment, release = environment_get(name), release_get(model_get(model), number)
        made = policies.approval_give(environment=environment, release=release, actor=self.actor, **given)
        return Response(serializers.ApprovalSerializer(made).data, status=201)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, model: str, number: int) -> Response:
        """Takes your own approval back."""
        environment, release = environment_get(name), release_get(model_get(model), number)
        policies.approval_take_back(environment=environment, release=release, actor=self.actor)
        return Response(status=204)


def _shown(pk: int) -> object:
    return DeploymentDetailSerializer(deployment_get(pk)).data
