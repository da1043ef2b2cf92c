"""The interface between a frontend and the program that starts and ends it."""

from dataclasses import dataclass
from typing import Protocol


class Frontend(Protocol):
    """A listener.

    await start()   bind and listen; raises OSError
    address         the bound (host, port), after `start`; for a Unix socket the host is its path
    await drain()   accept no new connections; wait until the requests under way are answered and all connections closed
    await close()   close the connections that are left
    """

    @property
    def address(self) -> tuple[str, int]: ...

    async def start(self) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listening:
    """A frontend and its address. service: the frontend's name in errors. asks: whether every client must send a token."""

    frontend: Frontend
    service: str
    host: str
    port: int
    asks: bool = False
