"""The log: one line an event on standard error, level by tritonserver's flags."""

import logging
import sys

from serving.options import Options

# Libraries that log whole requests at their debug level, signatures and session tokens too.
TALKATIVE = ("botocore", "aiobotocore", "s3fs", "fsspec", "gcsfs", "adlfs", "azure", "google", "urllib3", "aiohttp")
LEVELS = {logging.INFO: "log_info", logging.WARNING: "log_warning", logging.ERROR: "log_error"}


def configure_logging(options: Options) -> None:
    """Set up the root logger; --log-verbose 1 and more shows debug lines."""

    def wanted(record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return options.log_verbose > 0
        flag = LEVELS.get(min(record.levelno, logging.ERROR))
        return flag is None or bool(getattr(options, flag))

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(wanted)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if options.log_verbose else logging.INFO, handlers=[handler])
    if options.log_verbose < 2:
        logging.getLogger("asyncio").setLevel(logging.INFO)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
