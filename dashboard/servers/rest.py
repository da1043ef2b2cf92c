"""Inference servers over REST: states, events, and the restart."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.servers import selectors as select
from dashboard.servers import serializers
from dashboard.servers.memory import server_memory
from dashboard.servers.services import server_restart
from dashboard.web.rest.endpoint import Endpoint, at, fieldless


@at("servers", "api_servers")
class ServerList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="servers_list", responses=serializers.ServerSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every inference server, with its state."""
        return self.page(select.servers(), serializers.ServerSerializer)


@at("processes", "api_processes")
class ProcessList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="processes_list", responses=serializers.ProcessSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every process of the dashboard on all machines, with its last heartbeat. One of the watchers leads."""
        return self.page(select.processes(), serializers.ProcessSerializer)


@at("servers/<str:name>", "api_server")
class ServerDetail(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.ServerSerializer)
    def get(self, request: Request, name: str) -> Response:
        """One inference server, with its state."""
        return Response(serializers.ServerSerializer(select.server_get(name)).data)


@at("servers/<str:name>/models", "api_server_models")
class ServerModels(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="servers_models_list", responses=serializers.ModelStateSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The versions of models on the server, with their states."""
        rows = select.model_states(server=select.server_get(name)).order_by("model_name", "version")
        return self.page(rows, serializers.ModelStateSerializer)


@at("servers/<str:name>/memory", "api_server_memory")
class ServerMemory(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.MemorySerializer)
    def get(self, request: Request, name: str) -> Response:
        """Who holds the memory of each device, what is evictable, and whether models that are not loaded would fit."""
        return Response(serializers.MemorySerializer(server_memory(select.server_get(name))).data)


@at("servers/<str:name>/events", "api_server_events")
class ServerEvents(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="servers_events_list", responses=serializers.EventSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The server's events, newest first."""
        return self.page(select.server_events(server=select.server_get(name)), serializers.EventSerializer)


@at("servers/<str:name>/restart", "api_server_restart")
class ServerRestart(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @fieldless(responses={202: serializers.ServerSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Asks for a restart; requests under way are finished first."""
        server = select.server_get(name)
        server_restart(server=server, actor=self.actor)
        return Response(serializers.ServerSerializer(server).data, status=202)
