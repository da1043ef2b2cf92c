"""Checks whether a request may call an endpoint, by the rules of access.authorisation. A method without a right is refused."""

from rest_framework.exceptions import MethodNotAllowed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from dashboard.access.authorisation import Right, actor_of, require


class HasRight(BasePermission):
    """Reads `rights` of the endpoint: method -> Right. HEAD needs the right of GET, OPTIONS needs VIEW."""

    def has_permission(self, request: Request, view: object) -> bool:
        actor = actor_of(request)
        if actor.user is None:
            return False
        rights: dict[str, Right] = {"OPTIONS": Right.VIEW, **getattr(view, "rights", {})}
        method = "GET" if request.method == "HEAD" else str(request.method)
        right = rights.get(method)
        if right is None:
            if not hasattr(view, method.lower()):
                known = ", ".join(sorted(rights.keys() - {"OPTIONS"}))
                raise MethodNotAllowed(method, f"this address does not take {method}; it takes {known}")
            return False
        require(actor, right)
        return True
