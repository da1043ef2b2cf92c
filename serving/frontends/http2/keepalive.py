"""Keepalive of one HTTP/2 connection: the server's pings, the ping strikes of the peer, and the maximum age of a connection.

Source: gRPC, doc/keepalive.md and proposals A8 and A9; the settings are tritonserver's --grpc-keepalive-... flags.
"""

from dataclasses import dataclass

from serving.cli.options import Options
from serving.frontends.shared.client_limits import with_jitter

KEEPALIVE_PING = b"slipway\0"
WITHOUT_CALLS_MS = 7_200_000  # shortest time between pings of a peer without calls, unless permit_without_calls


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """The values of the flags, in milliseconds or as counts; 0 for no limit."""

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
    """Decides when a connection pings and when it ends. The connection passes the monotonic time and its `traffic`, a value
    that changes whenever something is sent or received."""

    __slots__ = (
        "_heard_at",
        "_old_at",
        "_peer_ping_at",
        "_peer_traffic",
        "_ping_sent_at",
        "_pings_without_data",
        "_settings",
        "_strikes",
        "_traffic",
    )

    def __init__(self, settings: KeepaliveSettings, now: float) -> None:
        self._settings = settings
        self._heard_at = now
        self._old_at = now + with_jitter(settings.max_age_ms / 1000)
        self._traffic: object = None
        self._ping_sent_at = 0.0  # when the unanswered ping of this server was sent; 0 if there is none
        self._pings_without_data = 0
        self._peer_ping_at = float("-inf")
        self._peer_traffic: object = None
        self._strikes = 0

    def peer_pings_too_often(self, now: float, traffic: object, calls: bool) -> bool:
        """Count a ping of the peer. Return whether it has too many ping strikes. calls: whether the peer has open calls."""
        settings = self._settings
        if traffic != self._peer_traffic:
            self._peer_traffic = traffic
            self._peer_ping_at = now
            self._strikes = 0
            return False
        shortest = settings.min_ping_interval_ms if calls or settings.permit_without_calls else WITHOUT_CALLS_MS
        if (now - self._peer_ping_at) * 1000 >= shortest:
            self._peer_ping_at = now
            return False
        self._strikes += 1
        return bool(settings.max_ping_strikes) and self._strikes > settings.max_ping_strikes

    def ping_answered(self, now: float) -> None:
        self._ping_sent_at = 0.0
        self._heard_at = now

    def wants_ping(self, now: float, traffic: object, calls: bool) -> bool:
        """Return whether to send a ping now. Called regularly."""
        settings = self._settings
        if traffic != self._traffic:
            self._traffic = traffic
            self._heard_at = now
            self._pings_without_data = 0
            self._ping_sent_at = 0.0
            return False
        if (
            self._ping_sent_at
            or (now - self._heard_at) * 1000 < settings.time_ms
            or not (calls or settings.permit_without_calls)
        ):
            return False
        if settings.max_pings_without_data and self._pings_without_data >= settings.max_pings_without_data:
            return False
        self._pings_without_data += 1
        self._ping_sent_at = now
        return True

    def silent_s(self, now: float) -> float:
        """Return the seconds since `wants_ping` last noticed traffic, or the peer last answered a ping."""
        return now - self._heard_at

    def is_dead(self, now: float) -> bool:
        """Return whether the peer has not answered a ping in time."""
        return bool(self._ping_sent_at) and (now - self._ping_sent_at) * 1000 > self._settings.timeout_ms

    def is_old(self, now: float, grace: bool = False) -> bool:
        """Return whether the connection has reached its maximum age. grace: whether the grace period must be over, too."""
        settings = self._settings
        if not settings.max_age_ms or (grace and not settings.max_age_grace_ms):
            return False
        return now > self._old_at + (settings.max_age_grace_ms / 1000 if grace else 0)
