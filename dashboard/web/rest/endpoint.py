"""The base of every REST endpoint."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, ListSerializer, Serializer
from rest_framework.views import APIView

from dashboard.access.authorisation import Actor, Right, actor_of
from dashboard.web.rest.pagination import Pages

Arguments = ParamSpec("Arguments")
View = TypeVar("View", bound=APIView)
Handler = Callable[Concatenate[Any, Request, Arguments], HttpResponseBase]

ADDRESSES: list[URLPattern] = []


class Endpoint(APIView):
    """rights: HTTP method -> the right that it needs. A method without a right is refused (web.rest.permissions.HasRight)."""

    rights: dict[str, Right] = {}
    max_body_bytes: int = settings.BODY_BYTES  # a longer body is refused before it is read (dashboard.admission)
    pagination_class = Pages

    @property
    def actor(self) -> Actor:
        return actor_of(self.request)

    @property
    def person(self) -> User:
        """The user who makes the request, identified by a session or a token."""
        user = self.actor.user
        assert user is not None  # HasRight refuses everybody else
        return user

    def page(
        self,
        rows: QuerySet[Any] | Sequence[object],
        serializer: type[BaseSerializer[Any]],
        shape: Callable[[list[Any]], list[Any]] = list,
    ) -> Response:
        """Answer with the page of a list that ?page= and ?page_size= name. shape: called with the rows of that page."""
        pages = self.pagination_class()
        shown = shape(pages.paginate_queryset(rows, self.request, self) or [])
        return pages.get_paginated_response(serializer(shown, many=True).data)


def at(address: str, name: str) -> Callable[[type[View]], type[View]]:
    """Give an endpoint an address below /api/v1/, and a name that begins with api_. dashboard.rest_urls collects them."""

    def decorate(endpoint: type[View]) -> type[View]:
        ADDRESSES.append(path(address, endpoint.as_view(), name=name))
        return endpoint

    return decorate


def data_of(
    request: Request, serializer: type[BaseSerializer[Any]]
) -> dict[str, Any]:  # the keys are arguments of a service
    """Return the validated body. Raises ValidationError (status 400) if the body has another shape, or an unknown field."""
    given = serializer(data=request.data)
    if not isinstance(request.data, Mapping):
        raise ValidationError(f"Expected an object with {', '.join(_list_inputs(given))}.")
    given.is_valid(raise_exception=True)
    _refuse_unknown(request.data, given)
    return dict(given.validated_data)


def fieldless(**described: Any) -> Callable[[Handler[Arguments]], Handler[Arguments]]:
    """Describe a method that takes no body, as `extend_schema` does. A body with fields is refused with status 400."""

    def decorate(handler: Handler[Arguments]) -> Handler[Arguments]:
        @wraps(handler)
        def checked(
            self: Any, request: Request, /, *args: Arguments.args, **kwargs: Arguments.kwargs
        ) -> HttpResponseBase:
            if request.data:
                raise ValidationError("This takes no fields: send it without a body.")
            return handler(self, request, *args, **kwargs)

        return cast("Handler[Arguments]", extend_schema(request=None, **described)(checked))

    return decorate


def _refuse_unknown(data: object, serializer: Any) -> None:
    """Refuse fields of validated data that neither a serializer nor one nested in it has."""
    if isinstance(serializer, ListSerializer):
        for row in cast("list[object]", data):
            _refuse_unknown(row, serializer.child)
    elif isinstance(serializer, Serializer) and isinstance(data, Mapping):
        fields = serializer.fields
        for name in data:
            if name not in fields:
                expected = ", ".join(_list_inputs(serializer))
                raise ValidationError({str(name)[:80]: [f"There is no such field; expected {expected}."]})
        for name, field in fields.items():
            if data.get(name) is not None:
                _refuse_unknown(data[name], field)


def _list_inputs(serializer: Any) -> list[str]:
    return [name for name, field in serializer.fields.items() if not field.read_only]
