"""The one place that decides who may do what: pages, REST, WebSockets and services all ask here.

Whoever is not signed in may do nothing. A person has the rights of their Django permissions; a token has those of its
person that it was also given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, TypeVar, cast

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponseBase

from dashboard.models import ApiToken
from dashboard.shared.choices import TokenRight
from dashboard.shared.exceptions import Forbidden

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


class Right(Enum):
    VIEW = "see the dashboard"
    INFER = "send inference requests"
    OPERATE = "load, unload, make live or configure models"
    UPLOAD_DATA = "upload model files"
    UPLOAD_CODE = "upload formats that can run code"
    ADMINISTER = "administer servers and accounts"


# The Django permission that gives a right; "" = anyone who is signed in, None = superusers alone.
PERMISSIONS: dict[Right, str | None] = {
    Right.VIEW: "",
    Right.INFER: "",
    Right.OPERATE: "dashboard.operate",
    Right.UPLOAD_DATA: "dashboard.upload_data",
    Right.UPLOAD_CODE: "dashboard.upload_code",
    Right.ADMINISTER: None,
}
TOKEN_RIGHTS: dict[Right, TokenRight] = {
    Right.VIEW: TokenRight.READ,
    Right.INFER: TokenRight.INFER,
    Right.OPERATE: TokenRight.WRITE,
    Right.UPLOAD_DATA: TokenRight.WRITE,
    Right.UPLOAD_CODE: TokenRight.UPLOAD_CODE,
    Right.ADMINISTER: TokenRight.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a person, a person through a token, or the system itself (no user)."""

    user: Any = None
    token: ApiToken | None = None
    system: bool = False

    @property
    def name(self) -> str:
        return "system" if self.user is None else self.user.get_username()

    def may(self, right: Right) -> bool:
        if self.system:
            return True
        if self.user is None or not self.user.is_authenticated or not self.user.is_active:
            return False
        if self.token is not None and TOKEN_RIGHTS[right] not in self.token.rights:
            return False
        permission = PERMISSIONS[right]
        if permission is None:
            return bool(self.user.is_superuser)
        return not permission or self.user.has_perm(permission)


SYSTEM = Actor(system=True)
NOBODY = Actor()


def token_rights(actor: Actor) -> list[TokenRight]:
    """What a token of this actor opens, or could be given: a person gives no right on that they lack themselves."""
    return [right for right in TokenRight if any(TOKEN_RIGHTS[one] == right and actor.may(one) for one in TOKEN_RIGHTS)]


def actor_of(request: HttpRequest) -> Actor:
    """The actor of a page's or an API call's request."""
    token = getattr(request, "auth", None)
    user = getattr(request, "user", None)
    if user is None or isinstance(user, AnonymousUser):
        return NOBODY
    return Actor(user=user, token=token if isinstance(token, ApiToken) else None)


def actor_of_scope(scope: Mapping[str, Any]) -> Actor:
    """The actor of a WebSocket."""
    user = scope.get("user")
    return NOBODY if user is None or not user.is_authenticated else Actor(user=user)


def require(actor: Actor, right: Right) -> None:
    """Forbidden, in one sentence, unless the actor has the right."""
    if not actor.may(right):
        holder = "this token" if actor.token is not None else "this account"
        raise Forbidden(f"{holder} has no permission to {right.value}")


def requires(right: Right) -> Callable[[View], View]:
    """Decorates a page's view. Everyone signed in may see; name the right where a view does more."""

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            require(actor_of(request), right)
            return view(request, *args, **kwargs)

        checked.right = right  # type: ignore[attr-defined]  # for dashboard.admission
        return cast(View, checked)

    return decorate
