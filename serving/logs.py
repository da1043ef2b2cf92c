"""The log: one line an event on standard error, level by tritonserver's flags."""

import logging
import sys
import time
from typing import TextIO

from serving.log_settings import LogSettings

# Libraries that log whole requests at their debug level, signatures and session tokens too.
TALKATIVE = ("botocore", "aiobotocore", "s3fs", "fsspec", "gcsfs", "adlfs", "azure", "google", "urllib3", "aiohttp")
FORMATS = {
    "default": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "ISO8601": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"),
}
FORMATS["ISO8601"].converter = time.gmtime


def configure_logging(settings: LogSettings) -> None:
    """Set up the root logger, which follows the settings from then on; verbose level 1 and more shows debug lines."""
    handler = _Handler(sys.stderr)
    handler.settings = settings

    def set_level() -> None:
        # At the source, so that a debug line that nobody wants costs nothing.
        logging.getLogger().setLevel(logging.DEBUG if settings.verbose_level else logging.INFO)
        logging.getLogger("asyncio").setLevel(logging.DEBUG if settings.verbose_level > 1 else logging.INFO)

    logging.basicConfig(handlers=[handler])
    settings.on_change = set_level
    set_level()
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Handler(logging.StreamHandler[TextIO]):
    settings: LogSettings

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self.settings
        if record.levelno < logging.INFO:
            return settings.verbose_level > 0
        if record.levelno < logging.WARNING:
            return settings.info
        return settings.warning if record.levelno < logging.ERROR else settings.error

    def format(self, record: logging.LogRecord) -> str:
        return FORMATS[self.settings.format].format(record)
