"""Keepalive of one HTTP/2 connection: our pings, how often the peer may ping, how old a connection may become.

Source: gRPC, doc/keepalive.md and proposals A8 and A9; the settings are tritonserver's --grpc-keepalive-... flags.
"""

from dataclasses import dataclass

from serving.cli.options import Options

KEEPALIVE_PING = b"slipway\0"
WITHOUT_CALLS_MS = 7_200_000  # the shortest time between two pings of a peer without calls, unless those are permitted


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """Milliseconds and counts; 0 for no limit."""

    time_ms: int = 7_200_000
    timeout_ms: int = 20_000
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_ms: int = 300_000
    max_ping_strikes: int = 2
    max_age_ms: int = 0
    max_age_grace_ms: int = 0

    @classmethod
    def from_options(cls, options: Options) -> "KeepaliveSettings":
        return cls(
            options.grpc_keepalive_time,
            options.grpc_keepalive_timeout,
            options.grpc_keepalive_permit_without_calls,
            options.grpc_http2_max_pings_without_data,
            options.grpc_http2_min_recv_ping_interval_without_data,
            options.grpc_http2_max_ping_strikes,
            options.grpc_max_connection_age,
            options.grpc_max_connection_age_grace,
        )


DEFAULTS = KeepaliveSettings()


class Keepalive:
    """Asked by the connection; times are of time.monotonic. `traffic` values are equal while nothing was sent or received."""

    __slots__ = (
        "_born",
        "_heard",
        "_peer_pinged",
        "_peer_traffic",
        "_pinged",
        "_pings",
        "_settings",
        "_strikes",
        "_traffic",
    )

    def __init__(self, settings: KeepaliveSettings, now: float) -> None:
        self._settings = settings
        self._born = self._heard = now
        self._traffic: object = None
        self._pinged = 0.0  # when a ping of ours was sent that is not answered yet
        self._pings = 0  # of ours since the last data
        self._peer_pinged = float("-inf")
        self._peer_traffic: object = None
        self._strikes = 0

    def peer_pings_too_often(self, now: float, traffic: object, calls: bool) -> bool:
        """Count a ping of the peer; True once it has had its strikes."""
        settings = self._settings
        if traffic != self._peer_traffic:
            self._peer_traffic = traffic
            self._peer_pinged = now
            self._strikes = 0
            return False
        shortest = settings.min_ping_interval_ms if calls or settings.permit_without_calls else WITHOUT_CALLS_MS
        if (now - self._peer_pinged) * 1000 >= shortest:
            self._peer_pinged = now
            return False
        self._strikes += 1
        return bool(settings.max_ping_strikes) and self._strikes > settings.max_ping_strikes

    def answered(self, now: float) -> None:
        """The peer has answered our ping."""
        self._pinged = 0.0
        self._heard = now

    def wants_ping(self, now: float, traffic: object, calls: bool) -> bool:
        """Whether to send a ping now; asked regularly."""
        settings = self._settings
        if traffic != self._traffic:
            self._traffic = traffic
            self._heard = now
            self._pings = 0
            self._pinged = 0.0
            return False
        if (
            self._pinged
            or (now - self._heard) * 1000 < settings.time_ms
            or not (calls or settings.permit_without_calls)
        ):
            return False
        if settings.max_pings_without_data and self._pings >= settings.max_pings_without_data:
            return False
        self._pings += 1
        self._pinged = now
        return True

    def is_dead(self, now: float) -> bool:
        """Our ping has not been answered in time."""
        return bool(self._pinged) and (now - self._pinged) * 1000 > self._settings.timeout_ms

    def is_old(self, now: float, grace: bool = False) -> bool:
        """The connection has had its time, and with `grace` also the time to finish its calls."""
        settings = self._settings
        if not settings.max_age_ms or (grace and not settings.max_age_grace_ms):
            return False
        return (now - self._born) * 1000 > settings.max_age_ms + (settings.max_age_grace_ms if grace else 0)
