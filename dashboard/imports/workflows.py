"""Imports a workflow: each node becomes a model, and an ensemble with the workflow's name runs them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_load
from dashboard.imports.publishing import NOTE, ImportContext, refuse_twin, scratch, text_import
from dashboard.models import AuditEntry, Model, Version
from dashboard.releases.selectors import current_document
from dashboard.shared.exceptions import Conflict, DashboardError
from repository.config import model_config
from repository.core.errors import InvalidConfig
from repository.core.layout import CONFIG_FILE
from repository.torchserve import set_up, workflow_models
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.set_up import SetUpModel, SetUpWorkflow
from repository.torchserve.workflow_spec import unpack

FORMAT = "ensemble"


@contextmanager
def nodes_of(workflow: SetUpWorkflow, options: TorchServeOptions) -> Iterator[list[SetUpModel]]:
    """Yield the models of a workflow's nodes. The archives made from its functions exist until the block ends."""
    with scratch() as folder:
        unpacked, functions = folder / "war", folder / "functions"
        unpack(workflow.path, unpacked)
        made = [
            set_up.function_node(
                workflow, node, workflow_models.write_function(workflow.spec, node, unpacked, functions), options
            )
            for node in workflow.spec.nodes
            if not node.url
        ]
        yield [*workflow.nodes, *made]


def ensemble_present(workflow: SetUpWorkflow, model: Model | None) -> Version | None:
    """Return the version that an earlier import made of this workflow, or None if there is none.

    Raises Conflict if another model has the workflow's name.
    """
    if model is None:
        return None
    version = model.versions.first()
    if version is None:
        return None
    if version.format != FORMAT or version.note != NOTE:
        refuse_twin(model.name)
    if _digest_in(model) != _digest(workflow):
        raise Conflict(
            f"the workflow '{model.name}' is there already, from another archive; delete that model first, or give this one "
            "another name (torch-workflow-archiver --workflow-name)"
        )
    return version


def ensemble_import(context: ImportContext, workflow: SetUpWorkflow) -> Version:
    """Publish the ensemble, without loading it."""
    config = workflow_models.ensemble(workflow.spec, workflow.archive, _digest(workflow))
    return text_import(context, workflow.spec.name, CONFIG_FILE, model_config.format(config))


def ensemble_serve(workflow: SetUpWorkflow, actor: Actor, *, load: bool) -> str:
    """Load an imported workflow, once. Return a sentence if it cannot be loaded, else ""."""
    row = Model.objects.filter(name=workflow.spec.name).first()
    if row is None or AuditEntry.objects.filter(model=row, action="model.import").exists():
        return ""
    served = load and workflow.registered
    try:
        with transaction.atomic():
            if served:
                model_load(model=row, actor=actor)
            audit_record(
                actor=actor,
                action="model.import",
                model=row,
                summary=f"Imported {row.name} from TorchServe: a workflow of {len(workflow.spec.nodes)} nodes",
                after={"archive": workflow.archive, "served": served},
            )
    except DashboardError as error:
        return f"{row.name} is not served yet: {error.message}"
    return "" if load else f"{row.name} is not served: this account may not load models"


def describe(workflow: SetUpWorkflow) -> str:
    """Return a description of the ensemble that a workflow becomes."""
    count = len(workflow.spec.nodes)
    served = "" if workflow.registered else ", not registered, so it is not served"
    return f"an ensemble of {count} model{'' if count == 1 else 's'}{served}"


def _digest(workflow: SetUpWorkflow) -> str:
    with workflow.path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_in(model: Model) -> str:
    try:
        found = workflow_models.described(model.name, current_document(model).message)
    except InvalidConfig:
        return ""
    return found.digest if found is not None else ""
