"""Log lines without a traceback for requests that are refused while the database does not answer, which may be many."""

import logging


class ShortWhenAway(logging.Filter):
    """For Django's log of requests: an answer 503 has the reason in its line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "status_code", 0) == 503 and record.exc_info:
            record.msg, record.args = f"{record.getMessage()} ({str(record.exc_info[1]).strip()})", ()
            record.exc_info = None
        return True
