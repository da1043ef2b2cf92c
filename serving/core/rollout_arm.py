"""The arm of a rollout that answers a request, for the request log and traces."""

from serving.core.in_flight import InFlightRequest, QuietObserver


class ArmObserver(QuietObserver):
    """An observer of a request that a rollout has given to one of its arms.

    arm: "stable" or "candidate". version: the version of the arm; "" for an arm on another server.
    """

    __slots__ = ("arm", "version")

    def __init__(self, arm: str, version: str) -> None:
        self.arm = arm
        self.version = version


def arm_of(request: InFlightRequest) -> ArmObserver | None:
    """Return the arm that a rollout chose for a request, or None without a rollout."""
    for observer in request.observers:
        if isinstance(observer, ArmObserver):
            return observer
    return None
