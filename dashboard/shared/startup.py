"""Reports why a process cannot start, in one sentence without a stack trace. The reason may be a wrong setting, an unwritable
data folder, or a database that is damaged or of a newer release."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error, connection

from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.shared.release import check_release
from repository.core.errors import RepositoryError

# A larger database is not checked at each start, because that reads the whole file.
CHECKED_BYTES = 1 << 30


def settings_or_exit() -> None:
    """Read the settings, which also prepares the data folder; end the process with a sentence if they are wrong.

    Garbage is collected again once the application is ready: looking for it among what is imported takes a seventh of a start.
    """
    gc.disable()
    try:
        settings.DEBUG  # noqa: B018 the first access reads them all
    except ImproperlyConfigured as error:
        sys.exit(sentence(str(error)))


def known_database_or_exit() -> None:
    """End the process with a sentence if the database is of a newer release. A database that does not answer is accepted,
    because it may still start."""
    try:
        check_release()
    except Invalid as error:
        sys.exit(sentence(error.message))
    except Error:
        pass
    finally:
        connection.close()


@contextmanager
def one_sentence() -> Iterator[None]:
    """Raise a CommandError of one sentence for every error of the block that a person can fix."""
    try:
        yield
    except DashboardError as error:
        raise CommandError(sentence(error.message)) from None
    except RepositoryError as error:
        raise CommandError(sentence(str(error))) from None
    except Error as error:
        raise CommandError(sentence(_about_database(error))) from None
    except OSError as error:
        raise CommandError(sentence(_about_file(error))) from None


def check_database() -> str:
    """Check that the database can be used, and return the newer release that has changed it, or "".

    SQLite checks every page of the file, unless the file has more than CHECKED_BYTES.
    Raises Invalid if the database is damaged, or of a newer release. Raises django.db.Error if it cannot be opened.
    """
    with connection.cursor() as cursor:
        if connection.vendor != "sqlite" or Path(connection.settings_dict["NAME"]).stat().st_size > CHECKED_BYTES:
            cursor.execute("SELECT 1")
            found = "ok"
        else:
            cursor.execute("PRAGMA quick_check(1)")
            found = str(cursor.fetchone()[0])
    if found != "ok":
        raise Invalid(_damaged(found.splitlines()[-1]))
    return check_release()


def _about_database(error: Error) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if connection.vendor != "sqlite":
        return f"the database (DATABASE_URL) cannot be used: {reason}"
    if "not a database" in reason or "malformed" in reason:
        return _damaged(reason)
    name = Path(connection.settings_dict["NAME"]).name
    hint = "run manage.py migrate" if "no such table" in reason else "it must be a file that this account may write"
    return f"the database {name} in the data folder (SLIPWAY_DATA) cannot be used: {reason}; {hint}"


def _damaged(reason: str) -> str:
    name = Path(connection.settings_dict["NAME"]).name
    return (
        f"the database {name} in the data folder (SLIPWAY_DATA) is damaged: {reason}; put a copy of it in its place, or move "
        "it away to begin with an empty one"
    )


def _about_file(error: OSError) -> str:
    name = Path(str(error.filename)).name if error.filename else "a file"
    return f"{name} in the data folder (SLIPWAY_DATA) cannot be written: {error.strerror or error}"


def sentence(text: str) -> str:
    """Return a reason as a sentence: with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
