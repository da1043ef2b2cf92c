#!/usr/bin/env python
"""Django's command line for the dashboard."""

import os
import sys
from contextlib import suppress


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    from django.core.management import execute_from_command_line
    from django.core.management.base import CommandError, CommandParser, handle_default_options

    from dashboard.doctor.report import settings_or_report
    from dashboard.shared.startup import settings_or_exit

    # `--settings` must apply before the settings are read. Django parses the arguments again, and reports mistakes in them.
    parser = CommandParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    with suppress(CommandError):
        handle_default_options(parser.parse_known_args(sys.argv[2:])[0])
    if sys.argv[1:2] == ["doctor"]:
        settings_or_report(sys.argv)
    settings_or_exit()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
