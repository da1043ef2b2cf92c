"""Imports a TorchServe set-up as models: the request, the preview, the job, and the job that continues it.

Each archive becomes a version. Versions are numbered in the order of the archives' own versions, which pages show next to the
numbers. When all versions of a model are published, one more release serves them as TorchServe did; the alias `default` names
the default version. A model that existed before, or that people have changed since, only gets the versions that it lacks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any, Literal, TypedDict, cast

from django.conf import settings
from django.db import transaction

from dashboard.access.audit import audit_parts, audit_record, audit_whole
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.catalog.services import model_load
from dashboard.configuration.services import config_apply
from dashboard.imports import workflows
from dashboard.imports.loads import to_wait_for
from dashboard.imports.publishing import (
    NOTE,
    ImportContext,
    discard_workflows,
    find_version,
    label_of,
    refuse_another,
    refuse_foreign,
    shown_version,
    version_import,
)
from dashboard.imports.sources import (
    CONFIG,
    MAX_PROPERTIES_BYTES,
    Source,
    allowed_folder,
    archive_name,
    kept_properties,
    read_source,
)
from dashboard.imports.wanted_config import describe, served_document
from dashboard.jobs.context import JobContext
from dashboard.jobs.services import ENDED, job_create
from dashboard.models import AuditEntry, Job, Model
from dashboard.models.job import StoreParams
from dashboard.releases.selectors import current_document
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden, Invalid, NotFound, TooLarge
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads.selectors import upload_get
from dashboard.uploads.services import upload_require_own
from repository.core.errors import Conflict as Held
from repository.files import storage
from repository.torchserve.set_up import SetUpModel, SetUpVersion, SetUpWorkflow

ACTION = "model.import"
WHOLE = "import.store"
KIND = "import"
_LOOK_S = 0.5
LOCK_WAIT_S = 30.0  # a worker that was wrongly taken for dead releases the lock within one step

Outcome = Literal["taken", "there", "failed", "would"]


class Row(TypedDict):
    """The result for one archive. number: the number of its version in the repository.

    loaded: whether the model serves, or None if nobody asked to load it, or no server was there to load it.
    """

    archive: str
    model: str
    version: str
    number: int | None
    outcome: Outcome
    message: str
    loaded: bool | None


class Report(TypedDict):
    """The result of an import, with a row for each archive. told: sentences about the sources of the set-up. notes: sentences
    about unused settings."""

    told: list[str]
    notes: list[str]
    rows: list[Row]


# -- asked for ---------------------------------------------------------------------------------------------------------
def import_create(
    *, actor: Actor, folder: str = "", uploads: Sequence[str] = (), properties: str = "", announce: bool = True
) -> Job:
    """Create the job that imports a folder, which an administrator has allowed, or uploaded archives.

    properties: the text of config.properties that belongs to uploaded archives.
    Raises Forbidden if the actor may not upload code, or no administrator has allowed the folder.
    """
    params = checked_params(actor=actor, folder=folder, uploads=uploads, properties=properties)
    title = f"Import {Path(folder).name}" if folder else f"Import {_count(len(uploads), 'archive')}"
    return job_create(kind=KIND, params={"store": params}, actor=actor, title=title, announce=announce)


def checked_params(
    *,
    actor: Actor,
    folder: str = "",
    uploads: Sequence[str] = (),
    properties: str = "",
    names: Mapping[str, str] | None = None,
) -> StoreParams:
    """Return the checked parameters of the job. names: upload id -> archive name, as an earlier job recorded them."""
    for right in (Right.UPLOAD_DATA, Right.UPLOAD_CODE):
        require(actor, right)
    if bool(folder) == bool(uploads):
        raise Invalid("expected either a folder or archives that were uploaded")
    load = actor.may(Right.OPERATE)
    if folder:
        if properties:
            raise Invalid(f"a folder has its own {CONFIG}")
        return {"folder": str(allowed_folder(folder)), "load": load}
    if len(properties.encode()) > MAX_PROPERTIES_BYTES:
        raise TooLarge(f"{CONFIG} has at most {MAX_PROPERTIES_BYTES} bytes")
    own_names = dict[str, str]()
    for pk in uploads:
        upload = upload_get(pk, with_files=False)
        upload_require_own(upload=upload, actor=actor)
        own_names[str(pk)] = (names or {}).get(str(pk)) or archive_name(upload)
        if upload.state == UploadState.RECEIVING and upload.received_bytes < upload.size_bytes:
            raise Conflict(f"'{own_names[str(pk)]}' has not arrived whole; send the rest first")
    kept = kept_properties(properties)
    return {"uploads": list(own_names), "names": own_names, "properties": kept, "load": load}


def import_resume(*, job: Job, actor: Actor) -> Job:
    """Create a job that continues an import that was cancelled or failed; published versions stay."""
    if job.kind != KIND:
        raise NotFound(f"job {job.pk} is no import")
    if job.state not in ENDED:
        raise Conflict(f"job {job.pk} has not ended; wait for it, or cancel it first")
    before = job.params["store"]
    if before.get("system"):
        require(actor, Right.ADMINISTER)
        params = before
    else:
        params = checked_params(
            actor=actor,
            folder=before.get("folder", ""),
            uploads=before.get("uploads", []),
            properties=before.get("properties", ""),
            names=before.get("names"),
        )
    return job_create(kind=KIND, params={"store": params}, actor=actor, title=job.title)


# -- looked at ---------------------------------------------------------------------------------------------------------
def import_preview(*, params: StoreParams) -> Report:
    """Return a report of what an import would do, without changing anything."""
    source = read_source(params)
    rows = _failures(source)
    for workflow in source.set_up.workflows:
        with workflows.nodes_of(workflow, source.options) as nodes:
            rows += [row for node in nodes for row in _model_looked_at(node)]
        rows.append(_ensemble_looked_at(workflow))
    for model in source.set_up.models:
        rows += _model_looked_at(model)
    return _report(source, rows)


def _model_looked_at(model: SetUpModel) -> Iterator[Row]:
    row = Model.objects.filter(name=model.name).first()
    number = row.last_number if row else 0
    for version in model.versions:
        found = _looked_at(version, model, row)
        if found["outcome"] == "would":
            number += 1
            found["number"] = number
        yield found


def _ensemble_looked_at(workflow: SetUpWorkflow) -> Row:
    try:
        return _ensemble_there(workflow) or _ensemble_row(workflow, "would", workflows.describe(workflow), 1)
    except DashboardError as error:
        return _ensemble_row(workflow, "failed", error.message)


@repository_errors()
def _looked_at(version: SetUpVersion, model: SetUpModel, row: Model | None) -> Row:
    try:
        found = _refused_or_there(version, row, read=False)  # a preview must not take minutes
    except DashboardError as error:
        return _row(version, "failed", error.message)
    if found is not None:
        return found
    return _row(version, "would", describe(version, model))


# -- done --------------------------------------------------------------------------------------------------------------
def import_run(
    context: JobContext, check: Callable[[], None] = lambda: None, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Run the job `import`, whose params hold a StoreParams as `store`. It continues an import that was interrupted.

    check: called before each archive; an exception that it raises ends the job. say: called with each line of the job's log.
    The job ends when every model that it loads serves or has failed to load. Its result is the report.
    Raises Conflict at the end if an archive was not imported or a model did not load. The report has the reasons.
    """
    params = context.params["store"]
    actor = _actor(context.job, params)
    try:
        with storage.locked(Path(settings.STAGING_DIR) / "import.lock", "the set of models", wait_s=LOCK_WAIT_S):
            return _run(context, check, say, params, actor)
    except Held:
        raise Conflict("another import is under way; wait until it has ended, then import again") from None


def _run(
    context: JobContext, check: Callable[[], None], say: Callable[[str], None], params: StoreParams, actor: Actor
) -> dict[str, Any]:
    source = read_source(params)
    rows = _failures(source)
    run = _Run(source, ImportContext(source, actor, context), check, say, rows, load=params.get("load", True))
    for line in (*source.origin, *(f"Note: {note}" for note in source.notes), *map(line_of, rows)):
        run.tell(line)
    with audit_parts():
        for workflow in source.set_up.workflows:
            run.workflow(workflow)
        for model in source.set_up.models:
            run.model(model)
    if not rows:
        raise Invalid("there is no archive to import")
    unloaded = run.wait_for_loads()
    result = _as_result(source, rows)
    context.report(result)
    context.progress(100, "Every archive was looked at")
    failed = sum(row["outcome"] == "failed" for row in rows)
    if not failed:
        discard_workflows(source.uploads)
    if failed or unloaded:
        raise Conflict(_complaint(failed, len(rows), unloaded))
    return result


def _complaint(failed: int, archives: int, unloaded: Sequence[str]) -> str:
    said = [f"{failed} of {_count(archives, 'archive')} could not be taken over"] if failed else []
    if unloaded:
        names = ", ".join(f"'{name}'" for name in unloaded[:5]) + (", ..." if len(unloaded) > 5 else "")
        said.append(f"{names} did not load")
    return f"{' and '.join(said)}; the report says why of each"


class _Run:
    """One run of an import. The outcome of each archive is added immediately to `rows`, the job's log and the job's result."""

    def __init__(
        self,
        source: Source,
        context: ImportContext,
        check: Callable[[], None],
        told: Callable[[str], None],
        rows: list[Row],
        *,
        load: bool,
    ) -> None:
        self._source, self._context, self._rows, self._load = source, context, rows, load
        self._check, self._told = check, told
        found = source.set_up
        nodes = sum(len(workflow.spec.nodes) + 1 for workflow in found.workflows)
        self._whole = max(1, nodes + sum(len(model.versions) for model in found.models))
        self._done = 0
        self._began: set[str] = set()  # models that this import has changed

    def workflow(self, workflow: SetUpWorkflow) -> None:
        """Import the nodes, then the ensemble unless a node is missing."""
        with workflows.nodes_of(workflow, self._source.options) as nodes:
            taken = [self.model(node) for node in nodes]
        failed = next((node.name for node, whole in zip(nodes, taken, strict=True) if not whole), "")
        self._begin(f"workflow {workflow.spec.name}")
        self._end(_import_ensemble(self._context, workflow, failed))
        name = workflow.spec.name
        self._serve(name, lambda: workflows.ensemble_serve(workflow, self._context.actor, load=self._load))

    def model(self, model: SetUpModel) -> bool:
        """Import the versions of a model, and serve them as TorchServe did. Return whether all versions are published."""
        rows = []
        for version in model.versions:
            self._begin(f"{model.name}, version {version.version}")
            rows.append(self._end(_import_version(self._context, model, version)))
        self._check()
        self._context.job_context.check_cancelled()
        self._serve(model.name, lambda: _served(model, self._context.actor, load=self._load))
        return all(row["outcome"] != "failed" for row in rows)

    def _begin(self, step: str) -> None:
        self._check()
        self._context.job_context.progress(100 * self._done / self._whole, step)

    def _end(self, row: Row) -> Row:
        self._done += 1
        self._rows.append(row)
        self.tell(f"{self._done}/{self._whole}: {line_of(row)}")
        if row["outcome"] == "taken":
            self._began.add(row["model"])
            self._record()
        self._context.job_context.report(_as_result(self._source, self._rows))
        return row

    def _serve(self, name: str, serve: Callable[[], str]) -> None:
        """Serve an imported model. serve: serves it unless an earlier import did, and returns a line for the log."""
        served = AuditEntry.objects.filter(action=ACTION, model_name=name)
        before = served.count()
        self.tell(serve())
        if served.count() != before:
            self._began.add(name)
            self._record()

    def _record(self) -> None:
        """Write the one audit entry of the import, with the models that it has changed so far."""
        job = self._context.job_context.job
        names = sorted(self._began)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        summary = f"Imported {_count(len(names), 'model')} from TorchServe: {shown}"
        audit_whole(
            actor=self._context.actor, action=WHOLE, key=f"job-{job.pk}", summary=summary, after={"models": names}
        )

    def wait_for_loads(self) -> list[str]:
        """Wait until each model that should serve has loaded or failed to load; return the names of the models that failed."""
        loads = to_wait_for(row["model"] for row in self._rows if row["outcome"] in ("taken", "there"))
        whole, failed = len(loads.waiting), []
        while loads.waiting:
            for name, versions, error in loads.take_finished():
                self._loaded(name, versions, error)
                failed += [name] if error else []
            if not loads.waiting:
                break
            if loads.nobody_loads():
                self._unheard(loads.waiting)
                break
            self._check()
            self._context.job_context.progress(
                99, f"Loading {loads.waiting[0]}, {_count(len(loads.waiting), 'model')} of {whole} to go"
            )
            sleep(_LOOK_S)
        return failed

    def _loaded(self, name: str, versions: Sequence[int], error: str) -> None:
        for row in self._rows:
            if row["model"] == name and row["outcome"] != "failed" and row["number"] in versions:
                row["loaded"] = not error
                row["message"] = f"it did not load: {error}" if error else row["message"]
        self.tell(f"{name}: did not load: {error}" if error else f"{name}: serves")
        self._context.job_context.report(_as_result(self._source, self._rows))

    def _unheard(self, names: Sequence[str]) -> None:
        for row in self._rows:
            if row["model"] in names and row["outcome"] == "taken":
                row["message"] += "; it loads when the inference server runs"
        self.tell(f"The inference server does not answer now; when it does, it loads {', '.join(names)}.")

    def tell(self, line: str) -> None:
        """Write a line into the job's log, unless it is empty."""
        if line:
            self._context.job_context.log(line)
            self._told(line)


def _actor(job: Job, params: StoreParams) -> Actor:
    """Return the actor of a job: the person who asked for it, with their present rights, or the system."""
    if params.get("system"):
        return SYSTEM
    if job.created_by is None:
        raise Forbidden("the account that asked for this is gone")
    actor = Actor(user=cast(Any, job.created_by))
    require(actor, Right.UPLOAD_CODE)
    return actor


def _import_version(context: ImportContext, model: SetUpModel, version: SetUpVersion) -> Row:
    try:
        with repository_errors():
            row = Model.objects.filter(name=model.name).first()
            found = _refused_or_there(version, row, read=True)
            if found is not None:
                return found
            before = row is not None and not _is_fresh(row)
            number = version_import(context, model, version).number
    except DashboardError as error:
        return _row(version, "failed", error.message)
    except OSError as error:
        return _row(version, "failed", f"the archive cannot be read: {error.strerror}")
    message = "published; what is served stays as the dashboard has it" if before else describe(version, model)
    return _row(version, "taken", message, number)


def _import_ensemble(context: ImportContext, workflow: SetUpWorkflow, failed: str) -> Row:
    """Import the ensemble of a workflow. failed: a node that could not be imported; "" if all were imported."""
    try:
        with repository_errors():
            found = _ensemble_there(workflow)
            if found is not None:
                return found
            if failed:
                raise Conflict(f"its node {failed} could not be taken over; mend that, then import again")
            number = workflows.ensemble_import(context, workflow).number
    except DashboardError as error:
        return _ensemble_row(workflow, "failed", error.message)
    return _ensemble_row(workflow, "taken", workflows.describe(workflow), number)


def _ensemble_there(workflow: SetUpWorkflow) -> Row | None:
    """Return the row of a workflow that was imported before, or None for a new one.

    Raises Conflict if the workflow cannot be imported.
    """
    name = workflow.spec.name
    row = Model.objects.filter(name=name).first()
    _refuse_unmanaged(name, row)
    found = workflows.ensemble_present(workflow, row)
    if found is None:
        return None
    return _ensemble_row(workflow, "there", "it exists already, and is not changed", found.number)


def _refuse_unmanaged(name: str, row: Model | None) -> None:
    if row is None and managed_repository().has_model(name):
        raise Conflict(f"the repository has a folder '{name}' that is not managed: adopt it first, or move it away")


def _refused_or_there(version: SetUpVersion, row: Model | None, *, read: bool) -> Row | None:
    """Return the row of a version that was imported before, or None for a new one.

    read: compare the content of archives, not only their size. Raises Conflict if the version cannot be imported.
    """
    _refuse_unmanaged(version.model, row)
    refuse_foreign(version.model, row)
    found = find_version(row, version.version)
    if found is None:
        return None
    refuse_another(version, found, read=read)
    return _row(version, "there", "it exists already, and is not changed", found.number)


def _served(model: SetUpModel, actor: Actor, *, load: bool) -> str:
    """Serve the imported versions as TorchServe did. Return a sentence if something differs or fails, else "".

    This is done once for each model, so that later changes by people stay.
    """
    row = Model.objects.filter(name=model.name).first()
    if row is None or not _is_fresh(row):
        return ""
    numbers = {label_of(version): version.number for version in row.versions.all()}
    registered = [shown_version(one.version) for one in model.versions if one.registered]
    served = sorted(numbers[label] for label in registered if label in numbers)
    default = numbers.get(shown_version(model.default.version)) if model.default else None
    try:
        with transaction.atomic():
            if served and load:
                published = sorted(row.published_numbers())
                document = served_document(current_document(row), served, published, default)
                config_apply(model=row, document=document, actor=actor, summary=f"{NOTE}: {_names(numbers)}")
                model_load(model=row, actor=actor)
            audit_record(
                actor=actor,
                action=ACTION,
                model=row,
                summary=f"Imported {row.name} from TorchServe: {_names(numbers)}",
                after={"versions": numbers, "served": served if load else [], "default": default},
            )
    except DashboardError as error:
        return f"{row.name} is not served yet: {error.message}"
    if served and not load:
        return f"{row.name} is not served: this account may not load models"
    if served and default is None:
        return f"{row.name}: its default version was not taken over, so version {max(served)} answers by default"
    return ""


def _is_fresh(row: Model) -> bool:
    """Return whether all versions of a model were imported, and no import has served them yet."""
    if AuditEntry.objects.filter(model=row, action=ACTION).exists():
        return False
    return all(version.note == NOTE for version in row.versions.all())


def _names(numbers: dict[str, int]) -> str:
    shown = [
        f"version {label}" + ("" if label == str(number) else f" as {number}") for label, number in numbers.items()
    ]
    return ", ".join(shown)


# -- told --------------------------------------------------------------------------------------------------------------
def _failures(source: Source) -> list[Row]:
    return [
        Row(archive=one.archive, model="", version="", number=None, outcome="failed", message=one.why, loaded=None)
        for one in source.set_up.failures
    ]


def _row(version: SetUpVersion, outcome: Outcome, message: str, number: int | None = None) -> Row:
    return Row(
        archive=version.archive,
        model=version.model,
        version=version.version,
        number=number,
        outcome=outcome,
        message=message,
        loaded=None,
    )


def _ensemble_row(workflow: SetUpWorkflow, outcome: Outcome, message: str, number: int | None = None) -> Row:
    return Row(
        archive=workflow.archive,
        model=workflow.spec.name,
        version="",
        number=number,
        outcome=outcome,
        message=message,
        loaded=None,
    )


_WORDS: dict[Outcome, str] = {"taken": "taken", "there": "there", "failed": "not taken", "would": "would be taken"}


def line_of(row: Row) -> str:
    """Return a row as one line of a log."""
    named = f"{row['model']} {row['version']}".rstrip()
    who = f"{named} ({row['archive']})" if row["model"] else row["archive"]
    number = f" as version {row['number']}" if row["number"] and row["outcome"] != "failed" else ""
    return f"{who}: {_WORDS[row['outcome']]}{number}: {row['message']}"


def _report(source: Source, rows: list[Row]) -> Report:
    return Report(told=source.origin, notes=source.notes, rows=rows)


def _as_result(source: Source, rows: list[Row]) -> dict[str, Any]:
    counts = Counter(row["outcome"] for row in rows)
    return {
        **_report(source, rows),
        "loaded": sum(row["loaded"] is True for row in rows),
        "not_loaded": sum(row["loaded"] is False for row in rows),
        "taken": counts["taken"],
        "there": counts["there"],
        "failed": counts["failed"],
    }


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
