"""With SLIPWAY_LOG_FORMAT=json each line of a log is one JSON object."""

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from dashboard.shared.environment import BASE_DIR
from dashboard.shared.json_log import process_name
from dashboard.supervisor.commands import check_server_flags, server_arguments

LOG = """
import logging, django
django.setup()
try:
    raise ValueError("first\\nsecond \\x1b[2J\\u202e")
except ValueError:
    logging.getLogger("dashboard.x").exception("it %s", "failed")
"""


def run(log_format: str, folder: Path) -> subprocess.CompletedProcess[str]:
    given = {
        "SLIPWAY_DATA": str(folder),
        "SLIPWAY_LOG_FORMAT": log_format,
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
    }
    command = [sys.executable, "-c", LOG]
    return subprocess.run(command, cwd=BASE_DIR, env=os.environ | given, capture_output=True, text=True, timeout=120)


def test_an_exception_is_a_field_of_its_line(tmp_path: Path) -> None:
    (line,) = run("json", tmp_path).stderr.splitlines()
    found = json.loads(line)
    assert line.isascii()
    assert line.isprintable()
    assert datetime.fromisoformat(found.pop("time")).utcoffset() == timedelta()
    assert "ValueError: first\nsecond" in found.pop("exception")
    assert found == {"level": "ERROR", "logger": "dashboard.x", "process": "manage", "message": "it failed"}


def test_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    assert "SLIPWAY_LOG_FORMAT must be text or json" in run("xml", tmp_path).stderr


def test_the_server_writes_the_same_form_and_other_forms_may_be_chosen_for_it(settings: Any) -> None:
    settings.SERVER_FLAGS = ["--log-format=ISO8601"]
    check_server_flags()
    settings.LOG_FORMAT = "json"
    assert "--log-format=json" in server_arguments()


def test_a_command_line_names_its_process() -> None:
    names = {
        "dashboard": ["/venv/daphne/__main__.py", "-b", "::1"],
        "worker": ["/venv/celery/__main__.py", "-A", "dashboard", "worker"],
        "watch": ["manage.py", "watch"],
        "manage": ["manage.py", "migrate"],
    }
    assert {name: process_name(line) for name, line in names.items()} == {name: name for name in names}
