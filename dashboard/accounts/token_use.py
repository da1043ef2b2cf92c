"""Writes down when tokens were last used, beside the requests that use them: a database that takes no writes refuses no read.

What is noted is written some seconds later, by a thread that is there while something waits to be written. A process that ends
before loses it: the time is for people, who look for tokens that nobody uses.
"""

import logging
import threading
from datetime import datetime, timedelta

from django.db import Error, connection
from django.utils import timezone

from dashboard.models import ApiToken

log = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
_NO_FINER = timedelta(minutes=1)  # than this is the time kept, so that a token in use is seldom written


class TokenUse:
    """When tokens were used since it was last written, by their ids. Any thread."""

    def __init__(self) -> None:
        self._used: dict[int, datetime] = {}
        self._lock = threading.Lock()
        self._writer: threading.Timer | None = None

    def note(self, token: ApiToken) -> None:
        """Note that a token is used now. It neither waits nor fails."""
        now = timezone.now()
        with self._lock:
            known = self._used.get(token.pk, token.last_used_at)
            if known is None or now - known > _NO_FINER:
                self._used[token.pk] = now
                self._write_soon()

    def write(self) -> None:
        """Write what was noted; what cannot be written now is kept for the next time."""
        with self._lock:
            self._writer = None
            used, self._used = self._used, {}
        try:
            for identifier, at in used.items():
                ApiToken.objects.filter(pk=identifier).update(last_used_at=at)
        except Error as error:
            log.info("when tokens were used is written later: %s", error)
            with self._lock:
                self._used = used | self._used
                self._write_soon()

    def _write_soon(self) -> None:
        if self._writer is None:
            self._writer = threading.Timer(WRITE_EVERY_S, self._write_and_close)
            self._writer.daemon = True
            self._writer.start()

    def _write_and_close(self) -> None:
        try:
            self.write()
        finally:
            connection.close()


TOKEN_USE = TokenUse()
"""That of this process."""
