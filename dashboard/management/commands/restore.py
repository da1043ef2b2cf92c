"""`manage.py restore`: restores a backup into an empty installation; lists or verifies backups."""

import getpass
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.backups.files import shown
from dashboard.backups.restoring import backup_find, backup_restore, backup_verify, backups_list
from dashboard.shared.startup import one_sentence
from dashboard.supervisor.preflight import lock_data_folder


class Command(BaseCommand):
    requires_system_checks = []
    help = (
        "Restore a backup into an empty data folder and database. It controls nothing until `manage.py accept control`."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("address", metavar="ADDRESS", help="the folder or address of the backups")
        parser.add_argument(
            "--backup", default="", metavar="TIME", help="a backup as --list names it; the newest by default"
        )
        parser.add_argument("--list", action="store_true", help="list the backups, and change nothing")
        parser.add_argument(
            "--verify", action="store_true", help="read the whole backup and compare every hash; change nothing"
        )

    def handle(self, *args: object, **options: Any) -> None:
        try:
            with one_sentence():
                if options["list"]:
                    self._list(options["address"])
                elif options["verify"]:
                    self._verify(options["address"], options["backup"])
                else:
                    self._restore(options["address"], options["backup"])
        except KeyboardInterrupt:
            raise CommandError("Interrupted. Run the same command again to go on.", returncode=130) from None

    def _list(self, address: str) -> None:
        found = backups_list(address)
        for one in found:
            rows = sum(table.rows for table in one.tables.values())
            keys = "with keys" if one.sealed else "without keys"
            self._say(f"{one.name}  {rows} rows, {len(one.files)} files ({shown(one.bytes)}), {keys}")
        if not found:
            self._say("This address holds no backup.")

    def _verify(self, address: str, name: str) -> None:
        store, manifest = backup_find(address, name)
        wrong = backup_verify(store, manifest, self._say)
        for sentence in wrong:
            self._say(sentence)
        if wrong:
            raise CommandError(f"The backup {manifest.name} is damaged: {len(wrong)} objects.")
        self._say(f"The backup {manifest.name} is whole.")

    def _restore(self, address: str, name: str) -> None:
        store, manifest = backup_find(address, name)
        passphrase = settings.BACKUP_PASSPHRASE
        if manifest.sealed and not passphrase and sys.stdin.isatty():
            passphrase = getpass.getpass("Passphrase of the keys (empty: make new keys): ")
        lock = lock_data_folder(settings.DATA_DIR)
        self._say(f"Restoring the backup {manifest.name}: {len(manifest.files)} files ({shown(manifest.bytes)}).")
        said = backup_restore(store=store, manifest=manifest, passphrase=passphrase, say=self._say)
        lock.release()
        for sentence in said:
            self._say(sentence)
        self._say(
            "Restored. This installation controls nothing: look at it with manage.py up. To let it take over, stop the "
            "original, run manage.py accept control, and start it."
        )

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
