"""`manage.py export`: writes the installation as a folder of text for git."""

from pathlib import Path

from django.core.management.base import BaseCommand, CommandParser

from dashboard.shared.release import check_release
from dashboard.shared.startup import one_sentence
from dashboard.text.folder import installation, write_folder


class Command(BaseCommand):
    requires_system_checks = []
    help = "Write models, configurations, policies, alerts and rights as a folder of text for git; it holds no secret."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="a new or empty folder, or one of an earlier export")

    def handle(self, *args: object, **options: object) -> None:
        folder = options["folder"]
        assert isinstance(folder, Path)
        with one_sentence():
            check_release()
            files = installation()
            changed = write_folder(folder, files)
        self.stdout.write(f"Wrote {len(files)} files, of which {changed} changed.")
