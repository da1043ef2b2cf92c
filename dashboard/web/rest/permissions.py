"""Whether a request may call an endpoint: access.authorisation decides. A method without a right is closed."""

from collections.abc import Mapping

from rest_framework.exceptions import MethodNotAllowed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from dashboard.access.authorisation import Right, actor_of, require


class HasRight(BasePermission):
    """Reads `rights` of the endpoint: method -> Right. HEAD takes the right of GET, OPTIONS takes VIEW."""

    def has_permission(self, request: Request, view: object) -> bool:
        actor = actor_of(request)
        if actor.user is None:
            return False
        rights: dict[str, Right] = {"OPTIONS": Right.VIEW, **getattr(view, "rights", {})}
        method = "GET" if request.method == "HEAD" else str(request.method)
        right = rights.get(method)
        if right is None:
            if not hasattr(view, method.lower()):
                raise MethodNotAllowed(method, f"{method} is nothing that can be done here; {_known(rights)} can")
            return False
        require(actor, right)
        return True


def _known(rights: Mapping[str, Right]) -> str:
    return ", ".join(sorted(rights.keys() - {"OPTIONS"}))
