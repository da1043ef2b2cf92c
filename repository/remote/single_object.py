"""One object in the cloud, read as a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from repository.remote.address import parse
from repository.remote.repository import explained, file_system


@contextmanager
def opened(text: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Yield the content of an object as a file, and its size if known. Raises RepositoryError if the object cannot be read.

    This function blocks and belongs on a worker thread."""
    address = parse(text)
    try:
        system, path = file_system(address)
        size = system.size(path)
        with system.open(path, "rb") as file:
            yield file, size
    except Exception as error:
        raise explained(error, f"{text.partition('://')[0]} object") from error
