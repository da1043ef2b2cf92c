"""The longest time that an inference server takes to stop. The server stops within that time, and a supervisor waits for it."""

BALANCER_DRAIN_S = 5.0  # the time that most load balancers need for two probes
CLOSING_S = 2.0  # the wait for connections that stay open after all their requests are answered


def drain_s(said: float | None, behind_load_balancer: bool) -> float:
    """Return the seconds that a server still serves after it reports not ready. said: --drain-secs, or None if not given."""
    if said is None:
        return BALANCER_DRAIN_S if behind_load_balancer else 0.0
    return said


def longest_s(exit_timeout_s: float, drain_s: float) -> float:
    return drain_s + exit_timeout_s + CLOSING_S
