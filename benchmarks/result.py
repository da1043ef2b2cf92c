"""One measurement."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """`cpu_us`: CPU time of the server's processes for each request, in microseconds."""

    requests: int
    seconds: float
    failures: int
    p50_ms: float
    p99_ms: float
    cpu_us: float = 0.0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds
