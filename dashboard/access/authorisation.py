"""The one place that decides who may do what: pages, REST, WebSockets and services all ask here.

Nobody may do anything without signing in. A person has the rights that their Django permissions give. A token has the rights
that it was given, except rights that the person who owns it has lost.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from django.contrib.auth.models import User
from django.db.models import prefetch_related_objects
from django.http import HttpRequest, HttpResponseBase

from dashboard.models import ApiToken
from dashboard.shared.choices import TokenRight
from dashboard.shared.exceptions import Forbidden

Arguments = ParamSpec("Arguments")  # the arguments of a view after the request
Answer = TypeVar("Answer", bound=HttpResponseBase)
View = Callable[Concatenate[HttpRequest, Arguments], Answer]


class Right(Enum):
    """A right of an actor; the value completes the phrase "permission to"."""

    VIEW = "see the dashboard"
    INFER = "send inference requests"
    OPERATE = "load, unload, make live or configure models"
    UPLOAD_DATA = "upload model files"
    UPLOAD_CODE = "upload formats that can run code"
    ADMINISTER = "administer servers and accounts"


# Only actors with this right may see the requests and answers of clients: traffic samples, examples made from them, and
# answers in which the arms of a rollout differ. Messages to other people must not quote any element of such data.
CLIENT_DATA = Right.OPERATE

# The Django permission that gives each right; "" gives the right to everybody who is signed in, None to superusers alone.
PERMISSIONS: dict[Right, str | None] = {
    Right.VIEW: "",
    Right.INFER: "",
    Right.OPERATE: "dashboard.operate",
    Right.UPLOAD_DATA: "dashboard.upload_data",
    Right.UPLOAD_CODE: "dashboard.upload_code",
    Right.ADMINISTER: None,
}
VIEWERS = "viewers"  # the group of people who may only look; a migration creates it
# The right that a token must hold for each right of an actor.
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

    user: User | None = None
    token: ApiToken | None = None
    system: bool = False

    @property
    def name(self) -> str:
        return "system" if self.user is None else self.user.get_username()

    @property
    def person(self) -> str:
        """The name of the person who acts; "" for the system."""
        return "" if self.user is None else self.user.get_username()

    def rights(self) -> list[Right]:
        return [right for right in Right if self.may(right)]

    def may(self, right: Right) -> bool:
        if self.system:
            return True
        if self.user is None or not self.user.is_authenticated or not self.user.is_active:
            return False
        if self.token is not None and TOKEN_RIGHTS[right] not in self.token.rights:
            return False
        permission = PERMISSIONS[right]
        if right is not Right.VIEW and only_looks(self.user):
            return False
        if permission is None:
            return bool(self.user.is_superuser)
        return not permission or self.user.has_perm(permission)


def only_looks(user: User) -> bool:
    """Return whether a person belongs to the viewers, who may only see the dashboard, whatever permissions they have.

    The answer is cached on the User object, as Django caches permissions. Administrators are never viewers.
    """
    if user.is_superuser:
        return False
    found: bool | None = getattr(user, "_only_looks", None)
    if found is None:
        found = any(group.name == VIEWERS for group in user.groups.all())
        user._only_looks = found  # type: ignore[attr-defined]
    return found


SYSTEM = Actor(system=True)
NOBODY = Actor()


def with_permissions(people: Iterable[User]) -> list[User]:
    """Return the people with their permissions read: five queries for any number of people."""
    found = list(people)
    prefetch_related_objects(found, "user_permissions__content_type", "groups__permissions__content_type")
    for person in found:
        held = [
            *person.user_permissions.all(),
            *(one for group in person.groups.all() for one in group.permissions.all()),
        ]
        # django.contrib.auth.backends.ModelBackend caches permissions in this attribute.
        person._perm_cache = {f"{one.content_type.app_label}.{one.codename}" for one in held}  # type: ignore[attr-defined]
    return found


def token_rights(actor: Actor) -> list[TokenRight]:
    """Return the rights that this actor has, and may therefore give to a token."""
    return [right for right in TokenRight if any(TOKEN_RIGHTS[one] == right and actor.may(one) for one in TOKEN_RIGHTS)]


def actor_of(request: HttpRequest) -> Actor:
    """Return the sender of a request to a page or to the REST API, or NOBODY if nobody is signed in."""
    token = getattr(request, "auth", None)
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return NOBODY
    return Actor(user=user, token=token if isinstance(token, ApiToken) else None)


def actor_of_scope(scope: Mapping[str, object]) -> Actor:
    """Return the actor who opened a WebSocket, from its ASGI scope, or NOBODY if nobody is signed in."""
    user = scope.get("user")
    return Actor(user=user) if isinstance(user, User) else NOBODY


def require(actor: Actor, right: Right) -> None:
    """Raise Forbidden, with one sentence, unless the actor has the right."""
    if not actor.may(right):
        holder = "this token" if actor.token is not None else "this account"
        raise Forbidden(f"{holder} has no permission to {right.value}")


def require_inference(actor: Actor, model_name: str) -> None:
    """Raise Forbidden if the actor's token is limited to other models."""
    token = actor.token
    if token is not None and token.model_names and model_name not in token.model_names:
        raise Forbidden(f"this token may not infer with model '{model_name}'")


def requires(right: Right) -> Callable[[View[Arguments, Answer]], View[Arguments, Answer]]:
    """Decorate the view of a page so that it raises Forbidden (status 403) if the actor lacks the right."""

    def decorate(view: View[Arguments, Answer]) -> View[Arguments, Answer]:
        @wraps(view)
        def checked(request: HttpRequest, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            require(actor_of(request), right)
            return view(request, *args, **kwargs)

        checked.right = right  # type: ignore[attr-defined]  # for dashboard.admission
        return checked

    return decorate
