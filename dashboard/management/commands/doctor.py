"""`manage.py doctor`: says what is wrong with this installation, and what to do."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dashboard.doctor.check import examine
from dashboard.doctor.report import JSON, LINES, report
from dashboard.doctor.table import CHECKS


class Command(BaseCommand):
    requires_system_checks = []
    help = "Say what is wrong with this installation, and what to do; end with status 1 if anything is."

    def add_arguments(self, parser: CommandParser) -> None:
        form = parser.add_mutually_exclusive_group()
        form.add_argument(JSON, action="store_true", help="print one JSON object")
        form.add_argument(LINES, action="store_true", help="print a JSON object a line, each when its check is made")

    def handle(self, *args: object, **options: Any) -> None:
        findings = examine(CHECKS, limited=True)
        if not report(findings, as_json=options["json"], as_lines=options["lines"]):
            sys.exit(1)
