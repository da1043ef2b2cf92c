"""Usage and quotas over REST."""

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.models import Quota
from dashboard.shared.exceptions import NotFound
from dashboard.usage import serializers
from dashboard.usage.selectors import BY, month_of, month_rows, quotas, read_until, usage_by, usage_total
from dashboard.usage.services import quota_remove, quota_set
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("usage", "api_usage")
class Usage(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(
        parameters=[
            OpenApiParameter("by", str, description=f"One of {', '.join(BY)}; by default {BY[0]}."),
            OpenApiParameter("month", str, description="Such as 2026-11; by default the present month, in UTC."),
        ],
        responses=serializers.UsageSerializer,
    )
    def get(self, request: Request) -> Response:
        """Who used what in a month. Administrators see everybody's use, other people their own."""
        by, month = request.query_params.get("by", BY[0]), month_of(request.query_params.get("month", ""))
        rows = month_rows(self.actor, month)
        answer = {
            "month": month.name,
            "by": by,
            "currency": settings.DEVICE_HOUR_CURRENCY,
            "until": read_until()[0],
            "total": usage_total(rows),
            "rows": usage_by(rows, by),
        }
        return Response(serializers.UsageSerializer(answer).data)


@at("usage/quotas", "api_quotas")
class QuotaList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.ADMINISTER}

    @extend_schema(operation_id="quotas_list", responses=serializers.QuotaSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every quota; people who do not administer see those that limit them."""
        return self.page(quotas(self.actor), serializers.QuotaSerializer)

    @extend_schema(request=serializers.QuotaRequestSerializer, responses={201: serializers.QuotaSerializer})
    def post(self, request: Request) -> Response:
        """Sets the quota of a token, person or group, in place of the one that it has."""
        data = data_of(request, serializers.QuotaRequestSerializer)
        quota = quota_set(actor=self.actor, of=data.pop("of"), name=data.pop("name"), limits=data)
        return Response(serializers.QuotaSerializer(quota).data, status=201)


@at("usage/quotas/<int:pk>", "api_quota")
class QuotaDetail(Endpoint):
    rights = {"DELETE": Right.ADMINISTER}

    @fieldless(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Removes a quota."""
        quota = Quota.objects.filter(pk=pk).first()
        if quota is None:
            raise NotFound("there is no such quota")
        quota_remove(actor=self.actor, quota=quota)
        return Response(status=204)
