"""`manage.py registry`: exports a release to an OCI registry, and imports a version from one."""

import time
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_get
from dashboard.exports.sending import release_export
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import UNFINISHED, job_cancel
from dashboard.models import Job
from dashboard.releases.selectors import newest_release, release_get
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.shared.release import check_release
from dashboard.shared.startup import one_sentence
from dashboard.templatetags.slipway import sentence
from dashboard.uploads.fetching import upload_fetch
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.selectors import upload_get

_LOOK_S = 0.5  # between two looks at a job that a worker runs


class Command(BaseCommand):
    requires_system_checks = []
    help = "Export a release to an OCI registry that the settings allow, or import a version from one. Either may be repeated."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, parser_class=CommandParser)
        push = actions.add_parser("push", help="export a release")
        push.add_argument("model")
        push.add_argument("address", help="such as registry.example/models/digits:3; the default tag is the release")
        push.add_argument("--release", type=int, help="its number, by default the newest")
        pull = actions.add_parser("pull", help="import a version, and load it")
        pull.add_argument("address")
        pull.add_argument("--model", default="", help="its name here, by default that in the address")
        pull.add_argument("--version", default="", dest="wanted", help="if there are several; by default the highest")
        pull.add_argument("--no-load", action="store_true", help="publish it, but change nothing that is served")
        for action in (push, pull):
            action.add_argument("--as", required=True, dest="person", metavar="NAME", help="the account that does it")

    def handle(self, *args: object, **options: Any) -> None:
        with one_sentence():
            check_release()
            user = User.objects.filter(username=options["person"], is_active=True).first()
            if user is None:
                raise Invalid(f"there is no active account '{options['person'][:150]}'")
            getattr(self, f"act_{options['action']}")(Actor(user=user), options)

    def act_push(self, actor: Actor, options: dict[str, Any]) -> None:
        model = model_get(options["model"])
        release = release_get(model, options["release"]) if options["release"] is not None else newest_release(model)
        if release is None:
            raise NotFound(f"model '{model.name}' has no release")
        job = self._finished(release_export(release=release, address=options["address"], actor=actor), actor)
        self.stdout.write(f"{job.result['address']}@{job.result['digest']}")

    def act_pull(self, actor: Actor, options: dict[str, Any]) -> None:
        source = {"kind": "registry", "address": options["address"], "version": options["wanted"]}
        upload = upload_fetch(actor=actor, model_name=options["model"], source=source)
        for _ in ("fetch", "inspect"):
            assert upload.job is not None
            self._finished(upload.job, actor)
            upload = upload_get(upload.pk)
        self._finished(upload_publish(upload=upload, actor=actor, load=not options["no_load"]), actor)
        version = upload_get(upload.pk).versions.get()
        self.stdout.write(f"{upload.model_name} version {version.number}")

    def _finished(self, job: Job, actor: Actor) -> Job:
        """Run a job here, or wait for the worker that has it. Ctrl-C cancels it. Raises CommandError if it does not succeed."""
        shown = ""
        try:
            while job.state in UNFINISHED:
                job_run(job_id=job.pk)
                job.refresh_from_db()
                if job.step != shown:
                    shown = job.step
                    self.stderr.write(shown)
                if job.state in UNFINISHED:
                    time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            job_cancel(job=job, actor=actor)
            raise CommandError("Cancelled. What was sent or fetched stays for the next try.", returncode=130) from None
        if job.state != JobState.SUCCEEDED:
            raise CommandError(sentence(job.error or "the job was cancelled"))
        return job
