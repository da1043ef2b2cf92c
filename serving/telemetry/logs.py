"""The log: one line an event, on standard error or in a file; level by tritonserver's flags."""

import logging
import sys
import time
from logging.handlers import WatchedFileHandler
from pathlib import Path

from serving.telemetry.log_settings import LogSettings

# Libraries that log whole requests at their debug level, signatures and session tokens too.
TALKATIVE = ("botocore", "aiobotocore", "s3fs", "fsspec", "gcsfs", "adlfs", "azure", "google", "urllib3", "aiohttp")
FORMATS = {
    "default": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "ISO8601": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"),
}
FORMATS["ISO8601"].converter = time.gmtime


def configure_logging(settings: LogSettings, path: Path | None = None) -> None:
    """Set up the root logger, which follows the settings from then on; verbose level 1 and more shows debug lines.

    A file that is moved away is begun anew. Raises OSError when it cannot be written.
    """
    handler: logging.Handler = WatchedFileHandler(path, encoding="utf-8") if path else logging.StreamHandler(sys.stderr)
    chosen = _Chosen(settings)
    handler.addFilter(chosen.filter)
    handler.setFormatter(chosen)

    def set_level() -> None:
        # At the source, so that a debug line that nobody wants costs nothing.
        logging.getLogger().setLevel(logging.DEBUG if settings.verbose_level else logging.INFO)
        logging.getLogger("asyncio").setLevel(logging.DEBUG if settings.verbose_level > 1 else logging.INFO)

    logging.basicConfig(handlers=[handler])
    settings.on_change = set_level
    set_level()
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


class _Chosen(logging.Formatter):
    """The levels that are shown, and how a line begins, as the settings are at that moment."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self._settings
        if record.levelno < logging.INFO:
            return settings.verbose_level > 0
        if record.levelno < logging.WARNING:
            return settings.info
        return settings.warning if record.levelno < logging.ERROR else settings.error

    def format(self, record: logging.LogRecord) -> str:
        return FORMATS[self._settings.format].format(record)
