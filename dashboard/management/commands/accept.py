"""`manage.py accept`: takes changed keys, a shared folder or a bucket, or lets a restored installation control its servers."""

from django.core.management.base import BaseCommand, CommandParser

from dashboard.access.control import control_accept
from dashboard.releases.restoration import bucket_accept
from dashboard.shared.startup import check_database, one_sentence
from dashboard.supervisor.installation import folder_accept, in_one_folder, keys_accept


class Command(BaseCommand):
    requires_system_checks = []
    help = (
        "Accept this machine's keys, shared folder or bucket as those of all machines, after a change on purpose, or let an "
        "installation that was restored from a backup control its servers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("keys", "folder", "bucket", "control"))

    def handle(self, *args: object, **options: object) -> None:
        with one_sentence():
            check_database()
            if options["what"] == "control":
                accepted = control_accept()
                self.stdout.write(
                    "This installation controls its servers now. Start it again, with all its processes."
                    if accepted
                    else "Nothing is to accept: this installation is in control."
                )
                return
            if options["what"] == "bucket":
                bucket_accept()
                self.stdout.write("This installation writes to the bucket from now on. Start it again.")
                return
            if in_one_folder():
                self.stdout.write("Nothing is to accept: the database, the keys and all files lie in one folder.")
                return
            if options["what"] == "keys":
                keys_accept()
                self.stdout.write(
                    "The keys of this machine are accepted. Give each machine the same keys, and start it again."
                )
            else:
                folder_accept()
                self.stdout.write("The shared folder of this machine is accepted. Give each machine the same folder.")
