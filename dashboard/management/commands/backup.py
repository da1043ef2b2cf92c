"""`manage.py backup`: makes a backup of the installation while it runs, in a folder or a bucket; or removes old backups."""

import argparse
import getpass
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.backups.files import shown
from dashboard.backups.making import backup_make, backups_prune
from dashboard.backups.manifest import FOLDERS
from dashboard.shared.startup import check_database, one_sentence
from dashboard.supervisor.installation import check_installation

_OPTIONAL = FOLDERS[1:]


class Command(BaseCommand):
    requires_system_checks = []
    help = (
        "Back up the database, models, archive, batch jobs, captures, usage log and keys. Only what is new is copied."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("address", metavar="ADDRESS", help="a folder, or an address such as s3://bucket/path")
        parser.add_argument(
            "--without", type=_folders, default=(), metavar="PARTS", help=f"leave out some of {','.join(_OPTIONAL)}"
        )
        parser.add_argument(
            "--prune", action="store_true", help="remove what no backup needs, instead of making a backup"
        )
        parser.add_argument(
            "--keep", type=_positive, metavar="N", help="with --prune: also all backups but the newest N"
        )

    def handle(self, *args: object, **options: Any) -> None:
        if options["keep"] and not options["prune"]:
            raise CommandError("--keep needs --prune.")
        try:
            with one_sentence():
                check_database()
                check_installation()
                if options["prune"]:
                    self._prune(options["address"], options["keep"])
                else:
                    self._make(options["address"], options["without"])
        except KeyboardInterrupt:
            raise CommandError(
                "Interrupted. Earlier backups are whole; --prune removes what this one has left.", returncode=130
            ) from None

    def _make(self, address: str, without: tuple[str, ...]) -> None:
        passphrase = settings.BACKUP_PASSPHRASE
        if not passphrase and sys.stdin.isatty():
            passphrase = getpass.getpass("Passphrase for the keys (empty: leave them out): ")
        made = backup_make(address=address, without=without, passphrase=passphrase, say=self._say)
        manifest = made.manifest
        if manifest.unsettled:
            self._say(
                f"Files of {', '.join(manifest.unsettled)} changed all the time and may not match the database: make another "
                "backup when nobody publishes."
            )
        if not passphrase:
            self._say("The keys are left out, because SLIPWAY_BACKUP_PASSPHRASE is not set.")
        self._say(
            f"Backup {manifest.name}: {made.rows} rows, {len(manifest.files)} files ({shown(manifest.bytes)}). "
            f"New in the store: {shown(made.stored)}; read: {shown(made.read)}."
        )

    def _prune(self, address: str, keep: int | None) -> None:
        backups, objects, size = backups_prune(address=address, keep=keep)
        self._say(f"Removed {backups} backups and {objects} objects ({shown(size)}).")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _folders(text: str) -> tuple[str, ...]:
    named = tuple(filter(None, text.split(",")))
    if not named or set(named) - set(_OPTIONAL):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(_OPTIONAL)}, got '{text}'")
    return named


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above zero, got '{text}'")
    return int(text)
