"""Environments over REST: their settings, servers, checks and wanted sets."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.catalog.selectors import model_get
from dashboard.fleet import selectors as select
from dashboard.fleet import serializers, services
from dashboard.fleet.checks import CONNECTIONS, check_server, server_add_checked
from dashboard.fleet.sources import check_source
from dashboard.servers.selectors import server_get
from dashboard.servers.serializers import ServerSerializer
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("environments", "api_environments")
class EnvironmentList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.ADMINISTER}

    @extend_schema(operation_id="environments_list", responses=serializers.EnvironmentSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The environments, production first."""
        return self.page(select.environments(), serializers.EnvironmentSerializer)

    @extend_schema(request=serializers.EnvironmentRequestSerializer, responses={201: serializers.EnvironmentSerializer})
    def post(self, request: Request) -> Response:
        """Makes an environment. It wants nothing yet, unless `everything` is true."""
        given = data_of(request, serializers.EnvironmentRequestSerializer)
        made = services.environment_create(actor=self.actor, **given)
        return Response(serializers.EnvironmentSerializer(made).data, status=201)


@at("environments/<str:name>", "api_environment")
class EnvironmentDetail(Endpoint):
    rights = {"GET": Right.VIEW, "PATCH": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @extend_schema(responses=serializers.EnvironmentSerializer)
    def get(self, request: Request, name: str) -> Response:
        """One environment."""
        return Response(serializers.EnvironmentSerializer(select.environment_get(name)).data)

    @extend_schema(request=serializers.EnvironmentChangeSerializer, responses=serializers.EnvironmentSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Changes the given fields. An empty `control_key` removes the key."""
        given = data_of(request, serializers.EnvironmentChangeSerializer)
        services.environment_update(environment=select.environment_get(name), actor=self.actor, **given)
        return Response(serializers.EnvironmentSerializer(select.environment_get(name)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Removes an environment, its servers and their history. The servers go on with what they have loaded."""
        services.environment_delete(environment=select.environment_get(name), actor=self.actor)
        return Response(status=204)


@at("environments/<str:name>/pin", "api_environment_pin")
class EnvironmentPin(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @fieldless(responses=serializers.EnvironmentSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Lets an environment want exactly the releases that it wants now. No server loads anything."""
        services.environment_pin(environment=select.environment_get(name), actor=self.actor)
        return Response(serializers.EnvironmentSerializer(select.environment_get(name)).data)


@at("environments/<str:name>/servers", "api_environment_servers")
class EnvironmentServers(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.ADMINISTER}

    @extend_schema(operation_id="environments_servers_list", responses=serializers.StandingSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The servers of an environment, each with how many models are wanted and served there, and what it holds."""
        found = select.environment_get(name)
        shape = partial(select.standings, found)
        return self.page(list(found.servers.all()), serializers.StandingSerializer, shape)

    @extend_schema(request=serializers.ServerRequestSerializer, responses={201: ServerSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Adds a server, if its check finds no problem or `unchecked` is true."""
        given = data_of(request, serializers.ServerRequestSerializer)
        unchecked = given.pop("unchecked")
        server = services.server_new(environment=select.environment_get(name), **given)
        server_add_checked(server=server, actor=self.actor, unchecked=unchecked)
        return Response(ServerSerializer(server_get(server.name)).data, status=201)


@at("environments/<str:name>/check", "api_environment_check")
class EnvironmentCheck(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @extend_schema(request=serializers.ServerCheckSerializer, responses=serializers.CheckSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Checks a server that is not added yet: what it is, what it must allow, what it holds. Nothing changes."""
        given = data_of(request, serializers.ServerCheckSerializer)
        server = services.server_new(environment=select.environment_get(name), **given)
        return Response(serializers.CheckSerializer(check_server(server, CONNECTIONS)).data)


@at("environments/<str:name>/source/check", "api_environment_source_check")
class EnvironmentSourceCheck(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @extend_schema(request=serializers.EnvironmentChangeSerializer, responses=serializers.CheckSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Looks up the servers of its DNS name or Kubernetes service, with the given settings. Nothing changes."""
        given = data_of(request, serializers.EnvironmentChangeSerializer)
        found = services.environment_with(environment=select.environment_get(name), actor=self.actor, **given)
        return Response(serializers.CheckSerializer(check_source(found)).data)


@at("environments/<str:name>/servers/<str:server>", "api_environment_server")
class EnvironmentServer(Endpoint):
    rights = {"PATCH": Right.ADMINISTER, "DELETE": Right.ADMINISTER}

    @extend_schema(request=serializers.AddressesSerializer, responses=ServerSerializer)
    def patch(self, request: Request, name: str, server: str) -> Response:
        """Gives a listed server other addresses."""
        given = data_of(request, serializers.AddressesSerializer)
        services.server_update(server=select.member_get(name, server), actor=self.actor, **given)
        return Response(ServerSerializer(server_get(server)).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, server: str) -> Response:
        """Removes a listed server and its history. It goes on with what it has loaded."""
        services.server_remove(server=select.member_get(name, server), actor=self.actor)
        return Response(status=204)


@at("environments/<str:name>/servers/<str:server>/zone", "api_environment_server_zone")
class EnvironmentServerZone(Endpoint):
    rights = {"PUT": Right.ADMINISTER}

    @extend_schema(request=serializers.ZoneSerializer, responses=ServerSerializer)
    def put(self, request: Request, name: str, server: str) -> Response:
        """Says in which zone a server runs. A deployment never changes servers of two zones at once."""
        given = data_of(request, serializers.ZoneSerializer)
        services.server_place(server=select.member_get(name, server), actor=self.actor, **given)
        return Response(ServerSerializer(server_get(server)).data)


@at("environments/<str:name>/servers/<str:server>/check", "api_environment_server_check")
class EnvironmentServerCheck(Endpoint):
    rights = {"POST": Right.ADMINISTER}

    @fieldless(responses=serializers.CheckSerializer)
    def post(self, request: Request, name: str, server: str) -> Response:
        """Checks a server of the environment again."""
        return Response(serializers.CheckSerializer(check_server(select.member_get(name, server), CONNECTIONS)).data)


@at("environments/<str:name>/wanted", "api_environment_wanted")
class WantedList(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(operation_id="environments_wanted_list", responses=serializers.WantedSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The wanted set of an environment. If it wants everything, these are the exceptions."""
        return self.page(select.wishes(select.environment_get(name)), serializers.WantedSerializer)


@at("environments/<str:name>/wanted/<str:model>", "api_environment_wish")
class WantedDetail(Endpoint):
    rights = {"PUT": Right.OPERATE, "DELETE": Right.OPERATE}

    @extend_schema(request=serializers.WantedRequestSerializer, responses=serializers.WantedSerializer)
    def put(self, request: Request, name: str, model: str) -> Response:
        """Wants a release of a model in an environment, or always its newest one."""
        given = data_of(request, serializers.WantedRequestSerializer)
        environment, found = select.environment_get(name), model_get(model)
        row = services.wanted_set(environment=environment, model=found, actor=self.actor, **given)
        return Response(serializers.WantedSerializer(row).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, model: str) -> Response:
        """Takes a model out of the wanted set."""
        environment, found = select.environment_get(name), model_get(model)
        services.wanted_remove(environment=environment, model=found, actor=self.actor)
        return Response(status=204)
