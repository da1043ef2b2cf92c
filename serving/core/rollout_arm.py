"""Which arm of a rollout answers a request: what the request log and traces say of it."""

from serving.core.in_flight import InFlightRequest


class ArmObserver:
    """An observer of a request that a rollout has given to one of its arms.

    arm: "stable" or "candidate". version: that answers there; "" of another server, whose answers say it.
    """

    __slots__ = ("arm", "version")

    def __init__(self, arm: str, version: str) -> None:
        self.arm = arm
        self.version = version


def arm_of(request: InFlightRequest) -> ArmObserver | None:
    """Return the arm that a request was given to; None where no rollout had a say."""
    for observer in request.observers:
        if isinstance(observer, ArmObserver):
            return observer
    return None
