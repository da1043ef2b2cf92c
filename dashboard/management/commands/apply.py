"""`manage.py apply`: brings the installation to a folder of text, or shows the difference."""

import sys
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.shared.exceptions import Invalid
from dashboard.shared.release import check_release
from dashboard.shared.startup import one_sentence, sentence
from dashboard.supervisor.installation import check_installation
from dashboard.text.folder import read_folder
from dashboard.text.plan import Plan, plan_of
from dashboard.text.services import secrets_needed, text_apply


class Command(BaseCommand):
    requires_system_checks = []
    help = "Bring the installation to a folder that 'manage.py export' wrote, or show the difference with --diff."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path)
        parser.add_argument("--diff", action="store_true", help="show what would change, and change nothing")
        parser.add_argument("--as", dest="person", metavar="NAME", help="the account that acts, with its rights")
        parser.add_argument("--prune", action="store_true", help="remove what the folder does not have")
        parser.add_argument("--partial", action="store_true", help="apply the rest if something cannot be applied")
        parser.add_argument(
            "--secrets", type=Path, metavar="FILE", help="a new file for passwords and tokens that are made"
        )

    def handle(self, *args: object, **options: Any) -> None:
        if not options["diff"] and not options["person"]:
            raise CommandError("Name the account that acts by --as NAME, or show the difference by --diff.")
        with one_sentence():
            check_release()
            check_installation()
            actor = _actor(options["person"]) if options["person"] else SYSTEM
            plan = plan_of(read_folder(options["folder"]), prune=options["prune"])
            if options["diff"]:
                self._show(plan, actor)
                return
            self._apply(plan, actor, options)

    def _show(self, plan: Plan, actor: Actor) -> None:
        for diff in plan.diffs:
            self.stdout.write(diff)
        self._say_kept(plan)
        for reason in filter(None, plan.refusals(actor).values()):
            self.stdout.write(f"Cannot be applied: {reason}.")
        if made := secrets_needed(plan):
            self.stdout.write(f"New secrets would be made, so --secrets FILE is needed: {len(made)}.")
        self.stdout.write(f"{len(plan.steps)} changes." if plan.steps else "Nothing to change.")

    def _apply(self, plan: Plan, actor: Actor, options: dict[str, Any]) -> None:
        try:
            found = text_apply(
                plan=plan,
                actor=actor,
                partial=options["partial"],
                secrets=options["secrets"],
                progress=self._progress,
            )
        except Invalid as error:
            if len(error.problems) < 2:
                raise
            raise CommandError(_lines([*(one.message for one in error.problems), "nothing was applied"])) from None
        except KeyboardInterrupt:
            raise CommandError(
                "Interrupted. Each model is as before or as in the folder; apply again to go on.", returncode=130
            ) from None
        self._say_kept(plan)
        self.stdout.write(f"Applied {found.done} changes." if found.done else "Nothing to change.")
        if found.failed:
            raise CommandError(_lines([*found.failed, "the rest was applied"]))

    def _say_kept(self, plan: Plan) -> None:
        for entry in plan.kept:
            self.stdout.write(f"Not in the folder, and removed only with --prune: {entry}.")

    def _progress(self, done: int, of: int) -> None:
        if sys.stderr.isatty():
            self.stderr.write(f"\r{done} of {of} changes", ending="\n" if done == of else "")


def _actor(name: str) -> Actor:
    user = User.objects.filter(username=name, is_active=True).first()
    if user is None:
        raise Invalid(f"there is no active account '{name[:150]}'")
    return Actor(user=user)


def _lines(reasons: list[str]) -> str:
    return "\n".join(map(sentence, reasons))
