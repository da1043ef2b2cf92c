"""`manage.py import_torchserve` imports a TorchServe set-up: its archives, versions and settings become models."""

import signal
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.access.authorisation import SYSTEM
from dashboard.imports.services import KIND, Row, import_preview, import_run, line_of
from dashboard.jobs.context import JobCancelled
from dashboard.jobs.runner import job_run_here
from dashboard.jobs.services import job_create
from dashboard.models.job import StoreParams
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError
from dashboard.shared.startup import check_database, one_sentence
from dashboard.supervisor.setup import migrate


class Command(BaseCommand):
    requires_system_checks = []
    help = (
        "Import a TorchServe set-up: its archives become versions of models, with their settings. You can run it again at any "
        "time: archives that were imported before are left alone. If the server runs, the command ends when all models are "
        "loaded. The exit status is 0 if every archive was imported and every load succeeded, else 1."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("config", nargs="?", type=Path, help="config.properties")
        parser.add_argument("--model-store", type=Path, help="folder of the archives, in place of model_store")
        parser.add_argument(
            "--models",
            nargs="+",
            metavar="[NAME=]ARCHIVE",
            help="archives registered at start, as in TorchServe's flag",
        )
        parser.add_argument("--no-config-snapshots", "--ncs", action="store_true", help="ignore the last snapshot")
        parser.add_argument("--dry-run", action="store_true", help="list what would be imported, and change no model")

    def handle(self, *args: object, **options: Any) -> None:
        params = self._params(**options)
        with one_sentence():
            check_database()
            migrate()  # a dry run needs a database, too
        try:
            failed = self._preview(params) if options["dry_run"] else self._import(params)
        except DashboardError as error:
            raise CommandError(f"{error.message[:1].upper()}{error.message[1:]}.") from None
        if failed:
            raise CommandError(failed)

    def _params(self, *, config: Path | None, model_store: Path | None, **options: Any) -> StoreParams:
        if config is None and model_store is None:
            raise CommandError(
                "Name config.properties, or the folder of the archives with --model-store.", returncode=2
            )
        for path, is_there in ((config, Path.is_file), (model_store, Path.is_dir)):
            if path is not None and not is_there(path):
                raise CommandError(f"There is no {path}.", returncode=2)
        folder = config.resolve().parent if config is not None else (model_store or Path()).resolve()
        params: StoreParams = {"folder": str(folder), "system": True, "load": True}
        params["snapshots"] = not options["no_config_snapshots"]
        if config is not None:
            params["config"] = str(config.resolve())
        if model_store is not None:
            params["model_store"] = str(model_store.resolve())
        if options["models"]:
            params["models"] = options["models"]
        return params

    def _preview(self, params: StoreParams) -> str:
        report = import_preview(params=params)
        self._say(report["told"], report["notes"], report["rows"])
        failed = sum(row["outcome"] == "failed" for row in report["rows"])
        return f"{failed} of {len(report['rows'])} archives could not be taken over." if failed else ""

    def _import(self, params: StoreParams) -> str:
        stopping: list[int] = []

        def stop(number: int, frame: FrameType | None) -> None:
            if stopping:
                raise KeyboardInterrupt
            stopping.append(number)
            self.stdout.write(
                "Stopping after this archive or load; a second signal stops immediately. Run the command again to continue."
            )

        def check() -> None:
            if stopping:
                raise JobCancelled

        job = job_create(
            kind=KIND,
            params={"store": params},
            actor=SYSTEM,
            title=f"Import {Path(params['folder']).name}",
            announce=False,
        )
        before = signal.signal(signal.SIGINT, stop)
        try:
            job_run_here(job=job, work=partial(import_run, check=check, say=self._write))
        finally:
            signal.signal(signal.SIGINT, before)
        result: Any = job.result
        if job.state == JobState.CANCELLED:
            return "Stopped. Run the command again to go on."
        if job.state != JobState.SUCCEEDED:
            return f"{job.error[:1].upper()}{job.error[1:].rstrip('.')}."
        self.stdout.write(f"{result['taken']} taken, {result['there']} there already, {result['loaded']} loaded.")
        return ""

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _say(self, told: list[str], notes: list[str], rows: list[Row]) -> None:
        for line in (*told, *(f"Note: {note}" for note in notes), *map(line_of, rows)):
            self.stdout.write(line)
