"""Over REST: the pods of an environment in Kubernetes, their number over time and why it changed, and setting that number."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.fleet.selectors import environment_get
from dashboard.kubernetes import selectors as select
from dashboard.kubernetes import serializers
from dashboard.kubernetes.services import replicas_set
from dashboard.models import ServerEnvironment
from dashboard.web.rest.endpoint import Endpoint, at, data_of


@at("environments/<str:name>/pods", "api_environment_pods")
class EnvironmentPods(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="environments_pods_list", responses=serializers.PodSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The pods of an environment in Kubernetes, those that are not ready first, each with the reason."""
        found = environment_get(name)
        return self.page(select.pod_standings(found, select.replicas_of(found).pods), serializers.PodSerializer)


@at("environments/<str:name>/replicas", "api_environment_replicas")
class EnvironmentReplicas(Endpoint):
    rights = {"GET": Right.VIEW, "PUT": Right.OPERATE}

    @extend_schema(responses=serializers.ReplicasSerializer)
    def get(self, request: Request, name: str) -> Response:
        """How many replicas are wanted and ready, and who decides that."""
        return _shown(environment_get(name))

    @extend_schema(request=serializers.ReplicasRequestSerializer, responses=serializers.ReplicasSerializer)
    def put(self, request: Request, name: str) -> Response:
        """Sets the number of replicas within the environment's bounds, unless an autoscaler would undo it."""
        found = environment_get(name)
        replicas_set(environment=found, actor=self.actor, **data_of(request, serializers.ReplicasRequestSerializer))
        return _shown(found)


@at("environments/<str:name>/replicas/counts", "api_environment_replica_counts")
class EnvironmentReplicaCounts(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="environments_replicas_counts_list", responses=serializers.ReplicaCountSerializer(many=True)
    )
    def get(self, request: Request, name: str) -> Response:
        """The number of replicas over time, the newest first: each from its moment on."""
        return self.page(select.replica_counts(environment_get(name)), serializers.ReplicaCountSerializer)


@at("environments/<str:name>/replicas/events", "api_environment_replica_events")
class EnvironmentReplicaEvents(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        operation_id="environments_replicas_events_list", responses=serializers.ReplicaEventSerializer(many=True)
    )
    def get(self, request: Request, name: str) -> Response:
        """Why the number of replicas changed, or did not, the newest first."""
        return self.page(select.replica_events(environment_get(name)), serializers.ReplicaEventSerializer)


def _shown(environment: ServerEnvironment) -> Response:
    return Response(serializers.ReplicasSerializer(select.replicas_of(environment)).data)
