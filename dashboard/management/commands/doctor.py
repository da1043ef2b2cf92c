"""`manage.py doctor`: says what is wrong with this installation, and what to do."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dashboard.doctor.check import examine
from dashboard.doctor.report import JSON, LINES, TEXT, report
from dashboard.doctor.table import CHECKS


class Command(BaseCommand):
    requires_system_checks = []
    help = "Say what is wrong with this installation, and what to do; end with status 1 if anything is."

    def add_arguments(self, parser: CommandParser) -> None:
        form = parser.add_mutually_exclusive_group()
        form.add_argument(f"--{JSON}", dest="form", action="store_const", const=JSON, help="print one JSON object")
        form.add_argument(
            f"--{LINES}",
            dest="form",
            action="store_const",
            const=LINES,
            help="print a JSON object a line, each when its check is made",
        )
        parser.set_defaults(form=TEXT)

    def handle(self, *args: object, **options: Any) -> None:
        if not report(examine(CHECKS, limited=True), options["form"]):
            sys.exit(1)
