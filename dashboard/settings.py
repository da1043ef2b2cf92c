"""Django's settings. Operators change them by environment variables, which environment.py lists."""

import logging
import os
import secrets
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from dashboard.plugins import table as plugins
from dashboard.shared import environment

BASE_DIR = environment.BASE_DIR
_env = environment.read()

# -- folders ---------------------------------------------------------------------------------------------------------
# docs/scale.md lists every file with its writers and readers. What all machines need lies in the shared folder.
DATA_DIR: Path = _env["SLIPWAY_DATA"]
SHARED_DIR: Path = _env["SLIPWAY_SHARED"] or DATA_DIR
MODEL_REPOSITORY = SHARED_DIR / "models"
REPOSITORY_BUCKET = _env["SLIPWAY_REPOSITORY"]  # "": only the folder
STAGING_DIR = SHARED_DIR / "staging"
ARCHIVE_DIR = SHARED_DIR / "archive"
BATCH_DIR = SHARED_DIR / "batches"
CAPTURE_DIR = SHARED_DIR / "captures"
BROKER_DIR = SHARED_DIR / "broker"
AUTH_FILE = SHARED_DIR / "auth.json"
USAGE_LOG = SHARED_DIR / "usage"  # what each token has used, by the bundled server
WANTED_MODELS_FILE = SHARED_DIR / "wanted.json"
ENVIRONMENTS_DIR = DATA_DIR / "environments"  # of the recipes; made when first needed
LOG_DIR = DATA_DIR / "logs"
HEARTBEAT_DIR = DATA_DIR / "heartbeats"
CHANGES_DIR = DATA_DIR / "changes"
EXAMPLES_DIR = BASE_DIR / "examples" / "models"


def _prepare_folders() -> None:
    """Make the data folder, the shared folder and their parts, readable by their owner alone."""
    shared = ("", "models", "staging", "archive", "batches", "captures", "broker/queue", "broker/control")
    own = ("", "logs", "heartbeats", "changes")
    for setting, folder, parts in (
        ("data folder (SLIPWAY_DATA)", DATA_DIR, own),
        (
            "shared folder (SLIPWAY_SHARED)" if SHARED_DIR != DATA_DIR else "data folder (SLIPWAY_DATA)",
            SHARED_DIR,
            shared,
        ),
    ):
        try:
            for part in parts:
                (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ImproperlyConfigured(f"the {setting} cannot be written: {error.strerror}") from None


def _secret(name: str) -> str:
    """Return a key that is made once and kept in the data folder, readable by its owner alone."""
    path = DATA_DIR / name
    try:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read_secret(path)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
        return path.read_text()
    except OSError as error:
        raise ImproperlyConfigured(
            f"{name} in the data folder (SLIPWAY_DATA) cannot be used: {error.strerror}"
        ) from None


def _read_secret(path: Path) -> str:
    value = path.read_text()
    if len(value) < 32:
        raise ImproperlyConfigured(f"{path.name} in the data folder is damaged; remove it, and a new one is made")
    return value


_prepare_folders()
SECRET_KEY = _env["SLIPWAY_SECRET_KEY"] or _secret("secret_key")

# -- processes and addresses -----------------------------------------------------------------------------------------
DASHBOARD_HOST, DASHBOARD_PORT = _env["SLIPWAY_HOST"], _env["SLIPWAY_PORT"]
SERVER_HTTP_PORT = _env["SLIPWAY_HTTP_PORT"]
SERVER_GRPC_PORT = _env["SLIPWAY_GRPC_PORT"]
SERVER_METRICS_PORT = _env["SLIPWAY_METRICS_PORT"]
# The header and key that the bundled server's control routes require.
SERVER_CONTROL_HEADER = "slipway-control-key"
SERVER_CONTROL_KEY = _env["SLIPWAY_CONTROL_KEY"] or _secret("control_key")
# With SLIPWAY_REQUIRE_TOKENS the bundled server requires a token for inference; SERVER_INFER_KEY is the dashboard's own.
REQUIRE_TOKENS = _env["SLIPWAY_REQUIRE_TOKENS"]
DEVICE_HOUR_PRICE, DEVICE_HOUR_CURRENCY = _env["SLIPWAY_DEVICE_HOUR_PRICE"]
USAGE_DAYS = _env["SLIPWAY_USAGE_DAYS"]
SERVER_INFER_KEY = _env["SLIPWAY_INFER_KEY"] or _secret("infer_key")
AUDIT_DAYS = _env["SLIPWAY_AUDIT_DAYS"]
SERVER_FLAGS = _env["SLIPWAY_SERVER_FLAGS"]
# TorchServe's config.properties, with which the bundled server serves TorchServe's protocols too.
TORCHSERVE_CONFIG = _env["SLIPWAY_TORCHSERVE_CONFIG"]
HUNG_AFTER_SECONDS = _env["SLIPWAY_HUNG_AFTER_SECONDS"]
KUBERNETES_SERVICE = _env["SLIPWAY_KUBERNETES_SERVICE"]  # production is its pods
TRAFFIC_REMOTES = _env["SLIPWAY_TRAFFIC_REMOTES"]
TRAFFIC_STATE_FILE = DATA_DIR / "traffic.json"  # the candidates that the bundled server has taken out
STRICT_DEVICES = _env["SLIPWAY_STRICT_DEVICES"]
ADMIN_USER, ADMIN_PASSWORD = _env["SLIPWAY_ADMIN_USER"], _env["SLIPWAY_ADMIN_PASSWORD"]

# -- uploads and inspection ------------------------------------------------------------------------------------------
SIGNING_KEY = _env["SLIPWAY_SIGNING_KEY"]  # signs each version that is published
MAX_UPLOAD_BYTES = _env["SLIPWAY_MAX_UPLOAD_BYTES"]
DISK_RESERVE_BYTES = _env["SLIPWAY_DISK_RESERVE_BYTES"]  # None: see repository.files.storage.ensure_space
UPLOAD_CHUNK_BYTES = 8 << 20
# The limit of other bodies: forms, configurations as text. Routes that take more declare `max_body_bytes`.
BODY_BYTES = 2 << 20
# A version up to this size is published or moved within the request; a worker does this for a larger version.
AT_ONCE_BYTES = 64 << 20
JOB_DAYS = _env["SLIPWAY_JOB_DAYS"]
UPLOAD_EXPIRY_HOURS = _env["SLIPWAY_UPLOAD_EXPIRY_HOURS"]
INSPECT_TIMEOUT = _env["SLIPWAY_INSPECT_TIMEOUT"]
INSPECT_MEMORY_BYTES = _env["SLIPWAY_INSPECT_MEMORY_BYTES"]
# Folders of TorchServe set-ups that pages and REST may import; none by default.
IMPORT_FOLDERS = _env["SLIPWAY_IMPORT_FOLDERS"]

# -- batch jobs ------------------------------------------------------------------------------------------------------
# The folders and the prefixes of buckets whose files batch jobs may read; none by default.
SOURCE_FOLDERS = _env["SLIPWAY_SOURCE_FOLDERS"]
SOURCE_BUCKETS = _env["SLIPWAY_SOURCE_BUCKETS"]
SOURCE_URLS = _env["SLIPWAY_SOURCE_URLS"]
SOURCE_MLFLOW = _env["SLIPWAY_SOURCE_MLFLOW"]
SOURCE_REGISTRIES = _env["SLIPWAY_SOURCE_REGISTRIES"]
EXPORT_REGISTRIES = _env["SLIPWAY_EXPORT_REGISTRIES"]
REGISTRY_AUTH_FILE = _env["SLIPWAY_REGISTRY_AUTH_FILE"]
BATCH_DAYS = _env["SLIPWAY_BATCH_DAYS"]
BATCH_BYTES = _env["SLIPWAY_BATCH_BYTES"]

# -- alerts ----------------------------------------------------------------------------------------------------------
PUBLIC_URL = _env["SLIPWAY_URL"]
ALERT_DAYS = _env["SLIPWAY_ALERT_DAYS"]
ALERT_ADDRESSES = _env["SLIPWAY_ALERT_ADDRESSES"]
_smtp = urlsplit(_env["SLIPWAY_SMTP"])
EMAIL_HOST = _smtp.hostname or "localhost"
EMAIL_USE_SSL = _smtp.scheme == "smtps"
# A password is never sent without TLS.
EMAIL_USE_TLS = _smtp.scheme == "smtp" and _smtp.username is not None
EMAIL_PORT = _smtp.port or (465 if EMAIL_USE_SSL else 587 if EMAIL_USE_TLS else 25)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = unquote(_smtp.username or ""), unquote(_smtp.password or "")
EMAIL_TIMEOUT = 5  # seconds for each step, of which a message takes a few
DEFAULT_FROM_EMAIL = _env["SLIPWAY_EMAIL_FROM"]

# -- Django ----------------------------------------------------------------------------------------------------------
DEBUG = _env["SLIPWAY_DEBUG"]
LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
ALLOWED_HOSTS = [*LOOPBACK, *_env["SLIPWAY_ALLOWED_HOSTS"]]
if DASHBOARD_HOST not in ("0.0.0.0", "::", *ALLOWED_HOSTS):
    ALLOWED_HOSTS.append(DASHBOARD_HOST)

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "dashboard",
    *plugins.APPS,
]

MIDDLEWARE = [
    "dashboard.web.traffic.count_requests",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.web.compression.CompressText",
    "dashboard.web.middleware.content_security_policy",
    "dashboard.web.middleware.refuse_nul",
    "dashboard.web.static_files.serve_static",
    "dashboard.web.changes.mark_pages",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # Deny by default: a view without sign-in must say so with @login_not_required.
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.web.middleware.ErrorPages",
]

ROOT_URLCONF = "dashboard.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "libraries": {"pages": "dashboard.overview.tags"},
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.web.context.shell",
            ],
        },
    },
]


# A database machine may vanish without closing its connections. Without these settings a session would stay open for two hours.
_DATABASE_GONE_S = 30
_KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": (_DATABASE_GONE_S - 10) // 5,
    "tcp_user_timeout": _DATABASE_GONE_S * 1000,
}


def _bounded(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the configuration of PostgreSQL with a pool and limits of times. Options in DATABASE_URL take precedence.

    Nothing is kept in a session between two transactions, so that a pooler such as PgBouncer may share sessions.
    """
    pool = {
        "name": "slipway",
        "min_size": 0,
        "max_size": _env["SLIPWAY_DATABASE_SESSIONS"],
        "timeout": 10.0,  # seconds to wait for a session
        "max_idle": 60.0,
        "reconnect_timeout": 5.0,
        "num_workers": 2,
    }
    options: dict[str, object] = {
        "pool": pool,
        "connect_timeout": _env["SLIPWAY_DATABASE_CONNECT_TIMEOUT"],
        "statement_limit_s": _env["SLIPWAY_DATABASE_STATEMENT_TIMEOUT"],
        **_KEEPALIVES,
    }
    own = {"ENGINE": "dashboard.postgresql", "DISABLE_SERVER_SIDE_CURSORS": True}
    return {**found, **own, "OPTIONS": {**options, **found.get("OPTIONS", {})}}


def _database() -> Mapping[str, object]:
    if _env["DATABASE_URL"]:
        try:
            found = dj_database_url.parse(_env["DATABASE_URL"], conn_max_age=0)  # the pool keeps the sessions
        except ValueError:
            raise ImproperlyConfigured("DATABASE_URL must be an address such as postgres://user@host/name") from None
        return _bounded(found) if found["ENGINE"] == "django.db.backends.postgresql" else found
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "db.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA journal_size_limit=16777216;",
        },
    }


DATABASES = {"default": _database()}
BACKUP_PASSPHRASE = _env["SLIPWAY_BACKUP_PASSPHRASE"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# -- accounts and cookies --------------------------------------------------------------------------------------------
AUTHENTICATION_BACKENDS = ["dashboard.accounts.authentication.ThrottledBackend"]
LOGIN_URL = "sign_in"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "sign_in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
# These are not Django's names, because browsers share the cookies of a host between all its ports.
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "slipway_session", "slipway_csrf"
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BEHIND_PROXY = _env["SLIPWAY_HTTPS"]
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "style-src-attr": "'unsafe-inline'",  # plotly.js positions its SVG text by style attributes
    "img-src": "'self' data: blob:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "manifest-src": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}

# -- static files ----------------------------------------------------------------------------------------------------
STATIC_URL = "static/"
# Only the files of Plotly are used: importing it would lengthen each start by 50 ms.
_plotly = Path(str(distribution("plotly").locate_file("plotly/package_data")))
STATICFILES_DIRS = [BASE_DIR / "static", ("plotly", _plotly)]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "dashboard.web.static_files.HashedAddresses"},
}

# -- language and time -----------------------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

# -- uploads through Django itself -----------------------------------------------------------------------------------
# The REST API limits the chunks of uploads. Forms are smaller.
DATA_UPLOAD_MAX_MEMORY_SIZE = UPLOAD_CHUNK_BYTES + (1 << 20)
FILE_UPLOAD_TEMP_DIR = STAGING_DIR

# -- queue -----------------------------------------------------------------------------------------------------------
REDIS_URL = _env["REDIS_URL"]
CELERY_BROKER_URL = REDIS_URL or "filesystem://localhost"
if REDIS_URL:
    # Nothing waits long for a Redis that is silent: a job that it does not take is sent later (jobs.outbox).
    CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, object] = {
        "socket_timeout": 2.0,
        "socket_connect_timeout": 2.0,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "max_retries": 0,
    }
    CELERY_TASK_PUBLISH_RETRY = False
    CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a worker waits for its Redis
else:
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(BROKER_DIR / "queue"),
        "data_folder_out": str(BROKER_DIR / "queue"),
        "control_folder": str(BROKER_DIR / "control"),
        "polling_interval": 0.2,  # seconds until a queued job is noticed; 1 by default
    }
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_IGNORE_RESULT = True
# A batch job, a fetch, a conversion and a measurement or tuning may run beside each other, because jobs of such a kind take
# turns (Kind.turn). Two threads are left for short jobs.
CELERY_WORKER_CONCURRENCY = 6
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = TIME_ZONE

# -- REST API --------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "dashboard.accounts.rest_authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["dashboard.web.rest.permissions.HasRight"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["dashboard.web.rest.parsers.BoundedJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "dashboard.web.rest.pagination.Pages",
    "DEFAULT_SCHEMA_CLASS": "dashboard.web.rest.schema.OperationSchema",
    "DEFAULT_THROTTLE_CLASSES": ["dashboard.web.rest.throttles.UserThrottle"],
    "DEFAULT_THROTTLE_RATES": {"user": "6000/min"},
    "EXCEPTION_HANDLER": "dashboard.web.rest.exception_handler.exception_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Slipway",
    "DESCRIPTION": "Everything that the pages can do. Authenticate with `Authorization: Bearer <token>`.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["dashboard.web.rest.permissions.HasRight"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    # Names for fields that share a name but have different choices.
    "ENUM_NAME_OVERRIDES": {
        "AlertSeverity": "dashboard.shared.choices.Severity",
        "AlertState": "dashboard.shared.choices.AlertState",
        "ChannelKind": "dashboard.shared.choices.ChannelKind",
        "DeploymentState": "dashboard.shared.choices.DeploymentState",
        "DeploymentServerState": "dashboard.shared.choices.StepState",
        "DeliveryState": "dashboard.shared.choices.DeliveryState",
        "MeasurementState": "dashboard.shared.choices.MeasurementState",
        "ReleaseKind": "dashboard.shared.choices.ReleaseKind",
        "ReleaseState": "dashboard.shared.choices.ReleaseState",
        "RolloutKind": "dashboard.shared.choices.RolloutKind",
        "RolloutState": "dashboard.shared.choices.RolloutState",
        "TruthKind": "dashboard.shared.choices.TruthKind",
        "UploadState": "dashboard.shared.choices.UploadState",
    },
}

# -- logging ---------------------------------------------------------------------------------------------------------
LOG_FORMAT = _env["SLIPWAY_LOG_FORMAT"]
logging.captureWarnings(LOG_FORMAT == "json")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "json": {"()": "dashboard.shared.json_log.JsonFormatter"},
    },
    "filters": {"short": {"()": "dashboard.shared.short_log.ShortWhenAway"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    "root": {"handlers": ["console"], "level": _env["SLIPWAY_LOG_LEVEL"]},
    "loggers": {
        # The DEBUG level of this logger prints SQL with parameters.
        "django.db.backends": {"level": "INFO"},
        "django.request": {"level": "ERROR", "filters": ["short"]},
        "daphne.http_protocol": {"level": "WARNING"},
        "psycopg.pool": {"level": "ERROR"},  # it logs each try to open a session
        "aiobotocore": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},  # httpx logs a line for each request, and `watch` makes many
    },
}
