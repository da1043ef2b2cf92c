"""The interface of a frontend for the program that starts and ends it."""

from dataclasses import dataclass
from typing import Protocol


class Frontend(Protocol):
    """A listener.

    await start()   bind and listen; raises OSError
    address         (host, port) that is bound, after `start`; for a Unix socket the host is its path
    await drain()   accept no new connections; existing ones finish the requests under way, then close
    await close()   end the connections that are left
    """

    @property
    def address(self) -> tuple[str, int]: ...

    async def start(self) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listening:
    """A frontend and its address. service: the frontend's name in errors. asks: every client has to show a token."""

    frontend: Frontend
    service: str
    host: str
    port: int
    asks: bool = False
