"""`manage.py doctor`: says what is wrong with this installation, and what to do."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dashboard.doctor.check import examine
from dashboard.doctor.report import JSON, report
from dashboard.doctor.table import CHECKS


class Command(BaseCommand):
    requires_system_checks = []
    help = "Say what is wrong with this installation, and what to do; end with status 1 if anything is."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(JSON, action="store_true", help="print one JSON object")

    def handle(self, *args: object, **options: Any) -> None:
        if not report(examine(CHECKS), as_json=options["json"]):
            sys.exit(1)
