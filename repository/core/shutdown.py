"""The longest time that an inference server takes to end: the server keeps to it, and a supervisor waits that long."""

BALANCER_DRAIN_S = 5.0  # two probes of most load balancers
CLOSING_S = 2.0  # for connections whose requests are answered and that stay open


def drain_s(said: float | None, behind_load_balancer: bool) -> float:
    """Return how many seconds it keeps serving while it is not ready any more. said: --drain-secs, None without it."""
    if said is None:
        return BALANCER_DRAIN_S if behind_load_balancer else 0.0
    return said


def longest_s(exit_timeout_s: float, drain_s: float) -> float:
    return drain_s + exit_timeout_s + CLOSING_S
