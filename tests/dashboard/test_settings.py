"""Settings fail loudly, secrets are made once and for their owner alone."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from dashboard.shared.environment import read
from tests.support.serving_process import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLIPWAY_PORT", "high"),
        ("SLIPWAY_PORT", "70000"),
        ("SLIPWAY_MAX_UPLOAD_BYTES", "0"),
        ("SLIPWAY_HTTPS", "perhaps"),
    ],
)
def test_a_wrong_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"{name} must be") as error:
        read({name: value})
    assert value not in str(error.value)


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="unknown setting SLIPWAY_PROT"):
        read({"SLIPWAY_PROT": "9000"})


def test_an_empty_variable_is_its_default() -> None:
    assert read({"SLIPWAY_PORT": ""})["SLIPWAY_PORT"] == 9000


def load(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")}
    return subprocess.run(
        [sys.executable, "-c", f"from dashboard import settings as s; print({code})"],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_other_settings_leave_the_data_folder_alone(tmp_path: Path) -> None:
    """`make check` is such a command."""
    data = tmp_path / "data"
    inherited = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(
        [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run", "--settings", "tests.settings"],
        cwd=ROOT,
        env={**inherited, "SLIPWAY_DATA": str(data)},
        timeout=PATIENCE_S,
        check=True,
    )
    assert not data.exists()


def test_secrets_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = load("s.SECRET_KEY, s.SERVER_CONTROL_KEY, s.SERVER_INFER_KEY", SLIPWAY_DATA=str(data)).stdout
    again = load("s.SECRET_KEY, s.SERVER_CONTROL_KEY, s.SERVER_INFER_KEY", SLIPWAY_DATA=str(data)).stdout
    assert first == again
    assert len(set(first.split())) == 3
    for name in ("secret_key", "control_key", "infer_key"):
        assert stat.S_IMODE((data / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_damaged_secret_or_folder_is_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("")
    assert "secret_key in the data folder is damaged" in load("1", SLIPWAY_DATA=str(tmp_path)).stderr
    (tmp_path / "file").touch()
    assert "SLIPWAY_DATA) cannot be written" in load("1", SLIPWAY_DATA=str(tmp_path / "file")).stderr


def test_addresses_move_database_and_queue_without_a_code_change(tmp_path: Path) -> None:
    code = "s.DATABASES['default']['ENGINE'], s.CELERY_BROKER_URL"
    embedded = load(code, SLIPWAY_DATA=str(tmp_path)).stdout
    moved = load(
        code, SLIPWAY_DATA=str(tmp_path), DATABASE_URL="postgres://u@h/n", REDIS_URL="redis://127.0.0.1:1/0"
    ).stdout
    assert "sqlite3" in embedded
    assert "filesystem://" in embedded
    assert "postgresql" in moved
    assert "redis://127.0.0.1:1/0" in moved
    wrong = load("1", SLIPWAY_DATA=str(tmp_path), DATABASE_URL="nonsense:secret")
    assert "DATABASE_URL must be an address" in wrong.stderr
    assert "nonsense:secret" not in wrong.stderr.splitlines()[-1]


@pytest.mark.django_db(transaction=True)
def test_sqlite_waits_for_other_writers_and_does_not_block_readers() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        assert cursor.fetchone()[0] >= 5000
    assert settings.DATABASES["default"]["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in settings.DATABASES["default"]["OPTIONS"]["init_command"]


@pytest.mark.django_db
def test_pages_take_nothing_from_elsewhere_and_cookies_stay_here() -> None:
    answer = Client().get("/sign-in")
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert settings.SESSION_COOKIE_HTTPONLY


@pytest.mark.django_db
def test_static_files_are_served_without_collecting_them() -> None:
    for path in ("plotly/plotly.min.js", "js/app.js"):
        answer = Client().get(f"/static/{path}")
        assert answer.status_code == 200, path
        assert "javascript" in answer["Content-Type"]
        answer.close()
    assert Client().get("/static/plotly/datasets/iris.csv.gz").status_code in (302, 404)


@pytest.mark.django_db
def test_a_nul_in_an_address_is_a_clear_refusal() -> None:
    for path in ("/api/v1/models/a%00b", "/api/v1/models?search=%00"):
        assert Client().get(path).status_code == 400
