"""Converts the files of an upload by a recipe, as a job: in programs of their own, confined, into files that replace them.

What the recipe writes lies in data/staging/<upload>/conversion until all of it is there. Of the files that it was made from,
only the lineage remains.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.confinement.bounds import Limits
from dashboard.confinement.program import nvidia_devices, run
from dashboard.confinement.promises import Promise, Unprotected
from dashboard.conversions.conversion import Conversion as Work
from dashboard.conversions.recipes.table import BY_NAME, PROGRAMS
from dashboard.conversions.results import ConvertedModel, converted_models
from dashboard.jobs.context import JobCancelled, JobContext, undone_by
from dashboard.jobs.services import job_create
from dashboard.models import Job, Upload, UploadFile
from dashboard.models.upload_json import Conversion
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden, Invalid, WrongState
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads import states
from dashboard.uploads.arrangement import source_folder
from dashboard.uploads.fetching import source_title
from dashboard.uploads.inspector import inspection_limits, link_packages, plain_environment
from dashboard.uploads.offers import machine_lacks, person_lacks, unkept_promises
from dashboard.uploads.services import upload_require_own
from repository.core.layout import CONFIG_FILE
from repository.files import storage

_MAX_OUTPUT_BYTES = 4 << 20
_MAX_LOGGED_LINES = 500


def conversion_start(
    *,
    upload: Upload,
    actor: Actor,
    recipe: str,
    options: Mapping[str, Any] | None = None,
    run_code: bool = False,
    unprotected: bool = False,
) -> Job:
    """Queue the conversion of an upload by a recipe that was offered for its files.

    run_code: whether the person has confirmed that the recipe may run code of the files. unprotected: whether it may run on a
    machine that does not keep all promises of confinement.
    Raises Forbidden if the person lacks the right to run code, and Conflict if a confirmation or a GPU is missing.
    """
    upload_require_own(upload=upload, actor=actor)
    states.refuse_unless(upload, "convert")
    offers = {one["recipe"]: one for one in upload.conversion.get("offers", [])}
    if recipe not in offers:
        known = ", ".join(offers) or "none"
        raise Invalid.at("recipe", f"'{recipe}' is no recipe for the files of this upload; its recipes are {known}")
    checked = BY_NAME[recipe].checked(options or {})
    if lack := person_lacks(BY_NAME[recipe], offers[recipe], actor):
        raise Forbidden(f"'{recipe}' {lack}")
    if offers[recipe]["loads_code"] and not run_code:
        raise Conflict(f"'{recipe}' runs code of the files: look at what they import, then confirm it with run_code")
    if lack := machine_lacks(BY_NAME[recipe]):
        raise Conflict(f"'{recipe}' {lack}")
    missing = unkept_promises()
    if missing and not unprotected:
        raise Conflict(f"{Unprotected(missing).message}: confirm with unprotected that it may run all the same")
    with transaction.atomic():
        title = f"Convert the upload for {upload.model_name}"
        job = job_create(kind="convert", params={"upload": str(upload.pk)}, actor=actor, title=title)
        asked: Conversion = {
            "recipe": recipe,
            "options": checked,
            "given_up": [str(one) for one in missing],
            "error": "",
        }
        states.convert(upload, conversion={**upload.conversion, **asked}, job=job)
        audit_record(
            actor=actor,
            action="upload.convert",
            model_name=upload.model_name,
            summary=f"Began to convert an upload for {upload.model_name} by the recipe {recipe}",
            after={"recipe": recipe, "options": checked, "given_up": asked["given_up"]},
        )
    upload.refresh_from_db()
    return job


def conversion_run(context: JobContext) -> dict[str, Any]:
    """Run the job `convert`, whose params are {"upload": id}. The upload gets the converted files, which are then inspected.

    An error leaves the upload as it was, with the reason.
    """
    upload = Upload.objects.get(pk=context.params["upload"])
    if upload.state == UploadState.CANCELLED:
        raise JobCancelled
    if upload.state != UploadState.CONVERTING:  # an earlier attempt died after its last transaction
        return {}
    work = upload.folder / "conversion"
    try:
        with undone_by(lambda error: _decline(upload, error)), repository_errors():
            storage.remove_tree(work)
            work.mkdir()
            lineage, models = _convert(upload, work, context)
            context.progress(100, "Putting the converted files in place")
            _replace(upload, models, lineage, context)
    except WrongState:  # the upload was cancelled, or has expired
        raise JobCancelled from None
    finally:
        storage.remove_tree(work)
    _remove_old_files(upload)
    return {"recipe": lineage["recipe"]["name"], "difference": lineage["difference"]}


def conversion_abandoned(job: Job) -> None:
    """Record that a conversion was ended while no worker ran it."""
    for upload in job.uploads.all():
        with contextlib.suppress(WrongState):
            states.decline(upload, reason=job.error or "The conversion was cancelled.")


def _decline(upload: Upload, error: Exception) -> None:
    reason = "The conversion failed; its job's worker has the details in its log."
    if isinstance(error, JobCancelled):
        reason = "The conversion was cancelled."
    elif isinstance(error, DashboardError):
        reason = error.message
    with contextlib.suppress(WrongState):
        states.decline(upload, reason=reason)


# -- the programs ------------------------------------------------------------------------------------------------------
def _convert(upload: Upload, work: Path, context: JobContext) -> tuple[dict[str, Any], list[ConvertedModel]]:
    asked, environments = upload.conversion, Path(settings.ENVIRONMENTS_DIR)
    conversion = Work(asked["recipe"], source_folder(upload), work / "target", asked["options"])
    programs = _Programs(
        work,
        reads=[conversion.source.folder, PROGRAMS, (environments / conversion.lock.folder_name).resolve()],
        devices=nvidia_devices() if conversion.recipe.needs_gpu else [],
        given_up=tuple(Promise(one) for one in asked["given_up"]),
        context=context,
    )
    lineage = conversion.run(environments, programs.tell, programs.run)
    models = converted_models(conversion.target, conversion.report(), upload.model_name)
    if not all(one.version or one.config for one in models):
        raise Invalid(f"the recipe '{asked['recipe']}' wrote no model: see the job's log")
    if upload.source and not asked.get("lineage"):
        lineage["fetched_from"] = source_title(upload)
    return lineage, models


class _Programs:
    """Runs the programs of one conversion, each confined to the folder `work`, and tells the job how far they are."""

    def __init__(
        self,
        work: Path,
        *,
        reads: Sequence[Path],
        devices: Sequence[Path],
        given_up: Sequence[Promise],
        context: JobContext,
    ) -> None:
        self._work, self._devices, self._given_up, self._context = work, devices, given_up, context
        self._packages = link_packages(work, "dashboard", "repository", "serving")
        self._reads = [*reads, *(link.resolve() for link in self._packages.iterdir())]
        self._step, self._lines = "", 0

    def tell(self, percent: float, step: str) -> None:
        if step != self._step:
            self._step = step
            self._context.log(step)
        self._context.progress(percent * 0.95, step)

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
        """Run a program; return its exit status and last line. Raises Invalid if a bound or a signal ended it."""
        last = ""

        def log(line: str) -> None:
            nonlocal last
            last = line
            self._lines += 1
            if self._lines <= _MAX_LOGGED_LINES:
                self._context.log(line)

        ended = run(
            command,
            folder=self._work,
            directory=self._packages,
            reads=self._reads,
            devices=self._devices,
            limits=_limits(),
            environment={**variables, **plain_environment(self._work)},
            check=self._check,
            on_line=log,
            given_up=self._given_up,
        )
        if ended.bound is not None or ended.status < 0:
            raise Invalid(f"{ended.sentence[0].lower()}{ended.sentence[1:].rstrip('.')}")
        # The outcome says what a bound or the confinement has to do with the last line.
        return ended.status, ended.sentence.partition("its last line: ")[2].rstrip(".") or last

    def _check(self) -> None:
        self._context.check_cancelled()
        storage.ensure_space(self._work, 0, settings.DISK_RESERVE_BYTES)


def _limits() -> Limits:
    """Return those of an inspection, with room for the files of a model."""
    inspection = inspection_limits()
    return Limits(
        memory_bytes=min(inspection.memory_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        cpu_seconds=inspection.cpu_seconds * (os.cpu_count() or 1),
        wall_seconds=inspection.wall_seconds,
        processes=inspection.processes,
        file_bytes=settings.MAX_UPLOAD_BYTES,
        output_bytes=_MAX_OUTPUT_BYTES,
    )


# -- the files ---------------------------------------------------------------------------------------------------------
def _replace(upload: Upload, models: list[ConvertedModel], lineage: dict[str, Any], context: JobContext) -> None:
    """Give the upload the files of the converted model, and make an upload of each model that it calls, in one transaction.

    The files get new numbers, so that an attempt that dies here leaves the present ones as they are.
    """
    *parts, own = models
    first = 1 + max(file.number for file in upload.files.all())
    files = _take_files(upload, own, first)
    with transaction.atomic():
        context.refuse_superseded()
        lineages = [*upload.conversion.get("lineage", []), lineage]
        others = [_part(upload, one, lineages) for one in parts]
        upload.files.all().delete()
        UploadFile.objects.bulk_create(files)
        conversion: Conversion = {"lineage": lineages, "parts": [str(one.pk) for one in others]}
        states.converted(upload, conversion=conversion, job=_inspection_of(upload))


def _part(upload: Upload, model: ConvertedModel, lineages: list[dict[str, Any]]) -> Upload:
    """Make an upload, to be inspected, of a model that the converted one calls."""
    part = Upload.objects.create(
        user=upload.user,
        user_name=upload.user_name,
        model_name=model.name,
        allow_code=upload.allow_code,
        conversion=Conversion(lineage=lineages),
        **states.initial(),
    )
    (part.folder / "files").mkdir(parents=True, mode=0o700)
    UploadFile.objects.bulk_create(_take_files(part, model, 0))
    states.complete(part, job=_inspection_of(part))
    return part


def _inspection_of(upload: Upload) -> Job:
    title = f"Inspect the upload for {upload.model_name}"
    actor = Actor(user=upload.user) if upload.user else SYSTEM
    return job_create(kind="inspect", params={"upload": str(upload.pk)}, actor=actor, title=title)


def _take_files(upload: Upload, model: ConvertedModel, first: int) -> list[UploadFile]:
    """Move the files of a model to the upload's, and return their rows. The layout is that of a model's folder."""
    paths = {**{f"1/{name}": path for name, path in model.version.items()}, **model.beside}
    if model.config:
        config = upload.folder / "converted.pbtxt"
        config.write_text(model.config)
        paths[CONFIG_FILE] = config
    rows = []
    for number, (name, path) in enumerate(paths.items(), first):
        place = upload.folder / "files" / str(number)
        path.chmod(0o600)
        path.replace(place)
        size = place.stat().st_size
        rows.append(UploadFile(upload=upload, number=number, path=name, size=size, received=size))
    return rows


def _remove_old_files(upload: Upload) -> None:
    """Remove the bytes that no row names. What a SIGKILL leaves here goes with the upload's folder."""
    kept = {str(number) for number in upload.files.values_list("number", flat=True)}
    for path in (upload.folder / "files").iterdir():
        if path.name not in kept:
            path.unlink()
