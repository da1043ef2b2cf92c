"""Inspects an upload: arranges its files, then runs `python -m serving.inspect` on them."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from dashboard.configuration.signatures import declared_signature
from dashboard.jobs.context import JobCancelled, JobContext, undone_by
from dashboard.models import Job, Release, Upload
from dashboard.models.upload_json import Contents, Conversion, Finding, Proposal
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import DashboardError, Forbidden, Invalid, WrongState
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads import states
from dashboard.uploads.arrangement import Arrangement, arrange
from dashboard.uploads.inspector import run_inspector
from dashboard.uploads.label_files import with_labels
from dashboard.uploads.offers import find_offers, find_offers_of_served
from dashboard.uploads.services import refuse_code
from repository.config import model_config
from repository.config.document import Document
from repository.files import foreign_formats
from repository.files.foreign_formats import stand_in_for_text

_CHUNK = 4 << 20


def inspection_run(context: JobContext) -> dict[str, Any]:
    """Run the job `inspect`, whose params are {"upload": id}. The upload becomes inspected, or failed with the reason.

    If the files cannot be published, the upload and the job fail; the upload then has a proposal, too.

    The proposal is the report of serving.inspect, with the text to review, and with problems of the uploaded or present
    configuration as warnings.
    """
    upload = Upload.objects.get(pk=context.params["upload"])
    if upload.state == UploadState.INSPECTED:  # an earlier attempt died after its last transaction
        return _result(upload.proposal)
    try:
        states.inspect(upload)
        with undone_by(lambda error: _reject(upload, error)), repository_errors():
            contents, proposal = _inspected(upload, context)
        refused = _errors(proposal)
        if refused:
            conversion = find_offers(upload, context)
            reason = _reason(refused[0]["message"], proposal, conversion)
            states.reject(upload, reason=reason, proposal=proposal, conversion=conversion)
            raise Invalid(reason)
        states.accept(upload, contents=contents, proposal=proposal, conversion=find_offers_of_served(upload))
    except WrongState:  # the upload was cancelled, or has expired
        raise JobCancelled from None
    return _result(proposal)


def _reason(message: str, proposal: Proposal, conversion: Conversion) -> str:
    """Return why the files cannot be published; if a recipe takes them, the recipe is the remedy, in place of work by hand."""
    offers, kind = conversion.get("offers"), foreign_formats.BY_NAME.get(proposal.get("format", ""))
    if not offers or kind is None or message != kind.sentence:
        return message
    return f"{kind.matter}: convert it by the recipe '{offers[0]['recipe']}', which is offered for this upload"


def _result(proposal: Proposal) -> dict[str, Any]:
    return {"format": proposal["format"], "problems": len(proposal["problems"])}


def inspection_abandoned(job: Job) -> None:
    """Reject the upload of a job that was ended while no worker ran it."""
    with contextlib.suppress(WrongState):
        for upload in job.uploads.all():
            states.reject(upload, reason=job.error or "The inspection was cancelled.")


def _reject(upload: Upload, error: Exception) -> None:
    reason = "The inspection failed; its job's worker has the details in its log."
    if isinstance(error, JobCancelled):
        reason = "The inspection was cancelled."
    elif isinstance(error, DashboardError):
        reason = error.message
    with contextlib.suppress(WrongState):
        states.reject(upload, reason=reason)


def _inspected(upload: Upload, context: JobContext) -> tuple[Contents, Proposal]:
    _check_hashes(upload, context)
    context.progress(50, "Bringing the files into order")
    arrangement = arrange(upload)
    # Code is refused before anything reads the files, because reading some formats runs their code.
    files = {name: arrangement.version_dir / name for name in arrangement.files}
    refuse_code(files={**files, **arrangement.model_files}, allowed=upload.allow_code)
    for theirs, ours in arrangement.renamed.items():
        context.log(f"{theirs} is stored as {ours}")
    context.progress(60, "Inspecting the model")
    arrangement, proposal = with_labels(arrangement, _proposal(upload, arrangement, context), upload.folder / "labels")
    if proposal["executes_code"] and not upload.allow_code and not _errors(proposal):
        raise Forbidden(f"format {proposal['format']} can run code; this needs the permission to upload code")
    beside = {name: str(path.relative_to(upload.folder)) for name, path in arrangement.model_files.items()}
    return Contents(files=arrangement.files, model_files=beside), proposal


def _check_hashes(upload: Upload, context: JobContext) -> None:
    """Compare the received files with the client's SHA-256, if it sent one."""
    files = [file for file in upload.files.all() if file.sha256 and file.size]  # an empty file is not there yet
    total, done = sum(file.size for file in files) or 1, 0
    for file in files:
        digest = hashlib.sha256()
        with (upload.folder / "files" / str(file.number)).open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                if done % (64 << 20) < _CHUNK:
                    context.progress(50 * done / total, "Checking the SHA-256")
        if digest.hexdigest() != file.sha256:
            raise Invalid(f"file '{file.path}' is not what was sent: its SHA-256 differs; upload it again")


def _proposal(upload: Upload, arrangement: Arrangement, context: JobContext) -> Proposal:
    newest = Release.objects.filter(model__name=upload.model_name).first()
    given, source = _find_configuration(arrangement, newest)
    problems: list[Finding] = []
    if given is not None and given.mistake is not None:
        downloaded = stand_in_for_text(given.text)
        message = downloaded.sentence if downloaded is not None else given.mistake.message
        problems = [{"severity": "warning", "message": f"config.pbtxt: {message}"}]
    sound = given if given is not None and given.mistake is None else None
    if sound is not None and not arrangement.files and model_config.is_ensemble(sound.message):
        found = _ensemble(sound)
    elif not arrangement.files:
        raise Invalid("the upload holds no model file")
    else:
        found = _inspect_with(upload, arrangement, sound, context)
    found["problems"] = problems + found["problems"]
    found["config_source"] = source
    found["config"] = given.text if given is not None else found["config"]
    found["base_release"] = newest.number if newest else 0
    return found


def _find_configuration(arrangement: Arrangement, newest: Release | None) -> tuple[Document | None, str]:
    """Return the existing configuration: the upload's own, or the configuration of the model that gets a new version."""
    if arrangement.config is not None:
        return arrangement.config, "upload"
    return (newest.document, "model") if newest and newest.document else (None, "file")


def _inspect_with(upload: Upload, arrangement: Arrangement, given: Document | None, context: JobContext) -> Proposal:
    """Inspect the files. If a valid file contradicts the configuration, return warnings: another configuration may fit."""
    config_file = _written(upload, given.text) if given is not None else None
    found = run_inspector(arrangement.version_dir, name=upload.model_name, config_file=config_file, context=context)
    if config_file is None or not _errors(found):
        return found
    alone = run_inspector(arrangement.version_dir, name=upload.model_name, config_file=None, context=context)
    if _errors(alone):
        return found
    contradictions = [Finding(severity="warning", message=problem["message"]) for problem in found["problems"]]
    return {**alone, "problems": contradictions, "fitting": alone["config"]}


def _errors(found: Proposal) -> list[Finding]:
    return [problem for problem in found["problems"] if problem["severity"] == "error"]


def _written(upload: Upload, text: str) -> Path:
    path = upload.folder / "config.pbtxt"
    path.write_text(text)
    return path


def _ensemble(document: Document) -> Proposal:
    declared = declared_signature(document)
    return {
        "format": "ensemble",
        "backend": "",
        "filename": "",
        "inputs": declared["inputs"],
        "outputs": declared["outputs"],
        "executes_code": False,
        "problems": [],
        "config": "",
    }
