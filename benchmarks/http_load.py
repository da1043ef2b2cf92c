"""A cheap HTTP load: one pre-encoded request over raw sockets, one request under way on each connection.

python -m benchmarks.http_load 127.0.0.1:8000 --path /v2 --clients 32 --seconds 5
"""

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks import closed_loop
from benchmarks.closed_loop import LoadClient, Outcome


class Client(LoadClient):
    """Sends the same request again and again."""

    def __init__(self, request: bytes, *load: Any) -> None:
        super().__init__(*load)
        self._request = request
        self._rest = b""

    def write_request(self) -> None:
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        start = data.lower().find(b"content-length:", 0, end)
        if end < 0 or len(data) < end + 4 + int(data[start + 15 : data.find(b"\r\n", start)]):
            self._rest = data
            return
        self._rest = b""
        self.answered(data.startswith(b"HTTP/1.1 200"))


def measure(address: str, request: bytes, clients: int, seconds: float, limit: int = 10_000_000) -> Outcome:
    """The load with a whole request as bytes."""
    return closed_loop.measure(address, lambda *load: Client(request, *load), clients, seconds, limit)


def http_request(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port")
    parser.add_argument("--path", default="/v2/health/live")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    for clients in arguments.clients:
        outcome = measure(arguments.address, http_request("GET", arguments.path), clients, arguments.seconds)
        print(
            f"{clients:4d} clients: {outcome.per_second:9.0f} requests/s, p50 {outcome.percentile_ms(50):7.2f} ms, "
            f"p99 {outcome.percentile_ms(99):7.2f} ms, {outcome.failures} failed"
        )


if __name__ == "__main__":
    main()
