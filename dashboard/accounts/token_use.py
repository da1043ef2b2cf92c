"""Records when tokens were last used. A thread writes the times, so that requests that only read need no write.

The thread starts some seconds after a use, writes all pending times, and ends. Pending times are lost when the process ends.
That does no harm, because people only look for unused tokens.
"""

import logging
import threading
from datetime import datetime, timedelta

from django.db import Error, connection
from django.utils import timezone

from dashboard.models import ApiToken

log = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
_RESOLUTION = timedelta(minutes=1)  # the precision of the recorded time, so that a token in use is seldom written


class TokenUse:
    """The times of use that are not written yet, by the id of the token. Any thread may call the methods."""

    def __init__(self) -> None:
        self._used: dict[int, datetime] = {}
        self._lock = threading.Lock()
        self._writer: threading.Timer | None = None

    def note(self, token: ApiToken) -> None:
        """Note that a token is used now. The function does not wait, and raises no error."""
        now = timezone.now()
        with self._lock:
            known = self._used.get(token.pk, token.last_used_at)
            if known is None or now - known > _RESOLUTION:
                self._used[token.pk] = now
                self._write_soon()

    def write(self) -> None:
        """Write the noted times; if that fails, keep them for the next time."""
        with self._lock:
            self._writer = None
            used, self._used = self._used, {}
        try:
            for identifier, at in used.items():
                ApiToken.objects.filter(pk=identifier).update(last_used_at=at)
        except Error as error:
            log.info("the times of tokens' use are written later: %s", error)
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


TOKEN_USE = TokenUse()  # of this process
