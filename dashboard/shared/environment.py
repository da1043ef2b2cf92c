"""Every environment variable of the dashboard: read once, validated, described.

A test compares this table with docs/configuration.md, so that every variable is documented.
"""

import math
import os
import re
import shlex
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TypedDict, cast

from django.core.exceptions import ImproperlyConfigured

from repository.core.errors import InvalidName
from repository.remote.address import parse

BASE_DIR = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. parse: turns its text into a value, or raises ValueError with the expected form. default: the value when
    the variable is not set."""

    parse: Callable[[str], object]
    default: object
    help: str


def _text(value: str) -> str:
    return value


def _log_format(value: str) -> str:
    if value not in ("text", "json"):
        raise ValueError("text or json")
    return value


def _path(value: str) -> Path:
    return Path(value).expanduser().resolve()


def _key(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,200}", value):  # a key is sent in headers, and stands in lists of flags
        raise ValueError("32 to 200 letters, digits, - or _")
    return value


def _flag(value: str) -> bool:
    answers = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return answers[value.strip().lower()]
    except KeyError:
        raise ValueError("1 or 0") from None


def _port(value: str) -> int:
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise ValueError("a port from 1 to 65535")
    return int(value)


def _positive(value: str) -> int:
    if not value.isdigit() or int(value) == 0:
        raise ValueError("a whole number above zero")
    return int(value)


def _at_least(least: int, unit: str) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isdigit() or int(value) < least:
            raise ValueError(f"a whole number of {unit}, {least} or more")
        return int(value)

    return parse


_seconds, _days = partial(_at_least, unit="seconds"), partial(_at_least, unit="days")


def _whole_number(value: str) -> int:
    if not value.isdigit():
        raise ValueError("a whole number")
    return int(value)


def _flags(value: str) -> list[str]:
    flags = shlex.split(value)
    if any(not flag.startswith("--") or "\n" in flag for flag in flags):
        raise ValueError("flags, such as --cache-config=local,size=1073741824 --memory-budget=8589934592")
    return flags


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _addresses(value: str) -> list[str]:
    names = [name.rstrip("/") for name in _names(value)]
    if any("://" not in name for name in names):
        raise ValueError("addresses such as s3://bucket/path, comma-separated")
    return names


def _bucket(value: str) -> str:
    try:
        address = parse(value.strip())
    except InvalidName as error:
        raise ValueError(error.message) from None
    if address.protocol not in ("s3", "gs", "abfs"):  # a store must replace an object as a whole
        raise ValueError("an address such as s3://bucket/path; s3, gs and as can be written")
    return value.strip()


def _web_address(value: str) -> str:
    name = value.strip().rstrip("/")
    parts = urllib.parse.urlsplit(name)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError("a web address such as https://host/path, without a user, password or query")
    return name


def _web_addresses(value: str) -> list[str]:
    return [_web_address(name) for name in _names(value)]


def _mail_server(value: str) -> str:
    parts = urllib.parse.urlsplit(value.strip())
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("an address such as smtps://user:password@host:465, or smtp://host:25")
    _ = parts.port  # raises ValueError for a wrong port
    return value.strip()


def _folders(value: str) -> list[Path]:
    paths = [Path(name).expanduser() for name in _names(value)]
    if any(not path.is_absolute() for path in paths):
        raise ValueError("absolute paths of folders, comma-separated")
    return [path.resolve() for path in paths]


def _price(value: str) -> tuple[float, str]:
    """Return the number and the currency of a price such as "2.50 EUR"."""
    number, _, currency = value.strip().partition(" ")
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not 0 <= price < 1e9 or not re.fullmatch(r"[A-Z]{3}|[^\w\s]?", currency.strip()):
        raise ValueError("a number of 0 or more and a currency, such as 2.50 EUR")
    return price, currency.strip()


VARIABLES: dict[str, Variable] = {
    "SLIPWAY_DATA": Variable(_path, BASE_DIR / "data", "Folder of what this machine writes."),
    "SLIPWAY_SHARED": Variable(_path, None, "Folder of what all machines need; the data folder when empty."),
    "SLIPWAY_REPOSITORY": Variable(
        _bucket, "", "Bucket that keeps the managed repository, such as s3://bucket/path; only the folder when empty."
    ),
    "SLIPWAY_HOST": Variable(_text, "127.0.0.1", "Address that all listeners bind to."),
    "SLIPWAY_PORT": Variable(_port, 9000, "Port of the dashboard."),
    "SLIPWAY_HTTP_PORT": Variable(_port, 8000, "HTTP port of the bundled inference server."),
    "SLIPWAY_GRPC_PORT": Variable(_port, 8001, "gRPC port of the bundled inference server."),
    "SLIPWAY_METRICS_PORT": Variable(_port, 8002, "Metrics port of the bundled inference server."),
    "SLIPWAY_ADMIN_USER": Variable(_text, "admin", "Name of the first administrator."),
    "SLIPWAY_ADMIN_PASSWORD": Variable(_text, "", "Password of the first administrator; generated when empty."),
    "SLIPWAY_ALLOWED_HOSTS": Variable(_names, [], "Host names, comma-separated, that the dashboard answers to."),
    "SLIPWAY_SECRET_KEY": Variable(_text, "", "Signing key of sessions; when empty, one is made in the data folder."),
    "SLIPWAY_CONTROL_KEY": Variable(_key, "", "Key of the bundled server's control routes; made when empty."),
    "SLIPWAY_INFER_KEY": Variable(_key, "", "The dashboard's own token for inference; made when empty."),
    "SLIPWAY_HTTPS": Variable(_flag, False, "1 behind a proxy that ends TLS: cookies are sent over HTTPS only."),
    "SLIPWAY_DEBUG": Variable(_flag, False, "1 shows stack traces in the browser; never on a reachable machine."),
    "SLIPWAY_LOG_LEVEL": Variable(_text, "INFO", "DEBUG, INFO, WARNING or ERROR."),
    "SLIPWAY_LOG_FORMAT": Variable(_log_format, "text", "Lines of the dashboard's logs: text or json."),
    "SLIPWAY_MAX_UPLOAD_BYTES": Variable(_positive, 64 << 30, "Largest upload, all files together."),
    "SLIPWAY_DISK_RESERVE_BYTES": Variable(
        _whole_number, None, "Bytes left free on the disk; 1 GiB or 5 % when unset."
    ),
    "SLIPWAY_JOB_DAYS": Variable(_positive, 14, "Days that a job is listed after its end."),
    "SLIPWAY_UPLOAD_EXPIRY_HOURS": Variable(_positive, 24, "Hours that an upload waits to be continued."),
    "SLIPWAY_INSPECT_TIMEOUT": Variable(
        _positive, 300, "Seconds that the inspection of a model file, or a program of a conversion, may take."
    ),
    "SLIPWAY_INSPECT_MEMORY_BYTES": Variable(
        _positive, 32 << 30, "Limit of the memory of an inspection or of a program of a conversion."
    ),
    "SLIPWAY_IMPORT_FOLDERS": Variable(_folders, [], "Folders of TorchServe's, comma-separated, that may be imported."),
    "SLIPWAY_SOURCE_FOLDERS": Variable(_folders, [], "Folders, comma-separated, that uploads and batch jobs may read."),
    "SLIPWAY_SOURCE_BUCKETS": Variable(
        _addresses, [], "Prefixes of buckets, comma-separated, that uploads and batch jobs may read."
    ),
    "SLIPWAY_SOURCE_URLS": Variable(
        _web_addresses, [], "Web addresses, comma-separated, below which uploads may read."
    ),
    "SLIPWAY_SOURCE_MLFLOW": Variable(_web_address, "", "Address of the MLflow tracking server that uploads may read."),
    "SLIPWAY_SOURCE_REGISTRIES": Variable(
        _web_addresses, [], "OCI registries, comma-separated web addresses, from which uploads may fetch."
    ),
    "SLIPWAY_EXPORT_REGISTRIES": Variable(
        _web_addresses, [], "OCI registries, comma-separated web addresses, to which releases may be exported."
    ),
    "SLIPWAY_REGISTRY_AUTH_FILE": Variable(_path, None, "Credentials of OCI registries, in the form of Docker's file."),
    "SLIPWAY_SIGNING_KEY": Variable(_path, None, "PEM file of the private key that signs each published version."),
    "SLIPWAY_BATCH_DAYS": Variable(_positive, 7, "Days that files and results of a batch job are kept after its end."),
    "SLIPWAY_BATCH_BYTES": Variable(_positive, 64 << 30, "Bytes of all batch jobs; the oldest ended ones are removed."),
    "SLIPWAY_TORCHSERVE_CONFIG": Variable(_path, None, "TorchServe's config.properties: its protocols are served too."),
    "SLIPWAY_SERVER_FLAGS": Variable(_flags, [], "More flags of the bundled inference server, as on a command line."),
    "SLIPWAY_KUBERNETES_SERVICE": Variable(str, "", "Service of Kubernetes whose pods are production, namespace/name."),
    "SLIPWAY_TRAFFIC_REMOTES": Variable(_path, None, "JSON file of the other servers that rollouts may call."),
    # Processes give a heartbeat every two seconds.
    "SLIPWAY_HUNG_AFTER_SECONDS": Variable(_seconds(5), 60, "Silence after which `up` replaces a process that lives."),
    "SLIPWAY_URL": Variable(_web_address, "", "Address at which people open the dashboard, for links in messages."),
    "SLIPWAY_AUDIT_DAYS": Variable(_positive, None, "Days that the audit trail is kept; for ever when unset."),
    "SLIPWAY_ALERT_DAYS": Variable(_positive, 90, "Days that an alert is listed after its end."),
    "SLIPWAY_ALERT_ADDRESSES": Variable(
        _web_addresses, [], "Web addresses, comma-separated, inside the machine or its networks that alerts may go to."
    ),
    "SLIPWAY_SMTP": Variable(
        _mail_server, "", "Mail server of alerts: smtps://user:password@host, or smtp:// (STARTTLS)."
    ),
    "SLIPWAY_EMAIL_FROM": Variable(_text, "slipway@localhost", "Sender of the e-mails of alerts."),
    "SLIPWAY_STRICT_DEVICES": Variable(_flag, False, "1 refuses a model that asks for a device this machine lacks."),
    "SLIPWAY_REQUIRE_TOKENS": Variable(_flag, False, "1 lets the bundled server infer only for holders of a token."),
    "SLIPWAY_DEVICE_HOUR_PRICE": Variable(_price, (0.0, ""), "Price of an hour of computing, e.g. 2.50 EUR."),
    # The server keeps its log for 40 days.
    "SLIPWAY_USAGE_DAYS": Variable(
        _days(62), 400, "Days for which each day's usage is kept, in whole months; 62 or more."
    ),
    "DATABASE_URL": Variable(_text, "", "Database address, e.g. postgres://...; SQLite in the data folder when empty."),
    "SLIPWAY_DATABASE_SESSIONS": Variable(_positive, 20, "Sessions of PostgreSQL that each process opens at most."),
    # libpq treats 1 second as 2 seconds.
    "SLIPWAY_DATABASE_CONNECT_TIMEOUT": Variable(
        _seconds(2), 5, "Seconds to wait for a session of PostgreSQL; 2 or more."
    ),
    "SLIPWAY_DATABASE_STATEMENT_TIMEOUT": Variable(
        _whole_number, 60, "Seconds that PostgreSQL works on a statement; 0: no limit."
    ),
    "REDIS_URL": Variable(_text, "", "Redis for the job queue; files in the data folder when empty."),
    "SLIPWAY_BACKUP_PASSPHRASE": Variable(
        _text, "", "Encrypts the keys in backups; asked for on a terminal when empty."
    ),
}

PASSPHRASE = "SLIPWAY_BACKUP_PASSPHRASE"
# Variables whose values are, or may hold, passwords and keys.
SECRETS = frozenset(
    {
        *("SLIPWAY_SECRET_KEY", "SLIPWAY_CONTROL_KEY", "SLIPWAY_INFER_KEY", "SLIPWAY_ADMIN_PASSWORD", PASSPHRASE),
        *("SLIPWAY_SMTP", "SLIPWAY_SERVER_FLAGS"),
    }
)


class Environment(TypedDict):
    """The values of VARIABLES."""

    SLIPWAY_DATA: Path
    SLIPWAY_SHARED: Path | None
    SLIPWAY_REPOSITORY: str
    SLIPWAY_HOST: str
    SLIPWAY_PORT: int
    SLIPWAY_HTTP_PORT: int
    SLIPWAY_GRPC_PORT: int
    SLIPWAY_METRICS_PORT: int
    SLIPWAY_ADMIN_USER: str
    SLIPWAY_ADMIN_PASSWORD: str
    SLIPWAY_ALLOWED_HOSTS: list[str]
    SLIPWAY_SECRET_KEY: str
    SLIPWAY_CONTROL_KEY: str
    SLIPWAY_INFER_KEY: str
    SLIPWAY_HTTPS: bool
    SLIPWAY_DEBUG: bool
    SLIPWAY_LOG_LEVEL: str
    SLIPWAY_LOG_FORMAT: str
    SLIPWAY_MAX_UPLOAD_BYTES: int
    SLIPWAY_DISK_RESERVE_BYTES: int | None
    SLIPWAY_JOB_DAYS: int
    SLIPWAY_UPLOAD_EXPIRY_HOURS: int
    SLIPWAY_INSPECT_TIMEOUT: int
    SLIPWAY_INSPECT_MEMORY_BYTES: int
    SLIPWAY_IMPORT_FOLDERS: list[Path]
    SLIPWAY_SOURCE_FOLDERS: list[Path]
    SLIPWAY_SOURCE_BUCKETS: list[str]
    SLIPWAY_SOURCE_URLS: list[str]
    SLIPWAY_SOURCE_MLFLOW: str
    SLIPWAY_SOURCE_REGISTRIES: list[str]
    SLIPWAY_EXPORT_REGISTRIES: list[str]
    SLIPWAY_REGISTRY_AUTH_FILE: Path | None
    SLIPWAY_SIGNING_KEY: Path | None
    SLIPWAY_BATCH_DAYS: int
    SLIPWAY_BATCH_BYTES: int
    SLIPWAY_TORCHSERVE_CONFIG: Path | None
    SLIPWAY_SERVER_FLAGS: list[str]
    SLIPWAY_KUBERNETES_SERVICE: str
    SLIPWAY_TRAFFIC_REMOTES: Path | None
    SLIPWAY_HUNG_AFTER_SECONDS: int
    SLIPWAY_URL: str
    SLIPWAY_AUDIT_DAYS: int | None
    SLIPWAY_ALERT_DAYS: int
    SLIPWAY_ALERT_ADDRESSES: list[str]
    SLIPWAY_SMTP: str
    SLIPWAY_EMAIL_FROM: str
    SLIPWAY_STRICT_DEVICES: bool
    SLIPWAY_REQUIRE_TOKENS: bool
    SLIPWAY_DEVICE_HOUR_PRICE: tuple[float, str]
    SLIPWAY_USAGE_DAYS: int
    DATABASE_URL: str
    SLIPWAY_DATABASE_SESSIONS: int
    SLIPWAY_DATABASE_CONNECT_TIMEOUT: int
    SLIPWAY_DATABASE_STATEMENT_TIMEOUT: int
    REDIS_URL: str
    SLIPWAY_BACKUP_PASSPHRASE: str


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Return every variable's value. Raises ImproperlyConfigured, with the variable's name only, if a value is wrong."""
    unknown = sorted(name for name in environ if name.startswith("SLIPWAY_") and name not in VARIABLES)
    if unknown:
        like = get_close_matches(unknown[0], VARIABLES, 1)
        hint = f"is it {like[0]}? " if like else ""
        raise ImproperlyConfigured(f"unknown setting {unknown[0]}; {hint}docs/configuration.md lists those that exist")
    return cast(Environment, {name: _value(name, variable, environ) for name, variable in VARIABLES.items()})


def _value(name: str, variable: Variable, environ: Mapping[str, str]) -> object:
    text = environ.get(name, "")
    if not text:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be {error}") from None
