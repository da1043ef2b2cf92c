"""Finds the ensembles that call a model, and the faults that they would have if the model's tensors changed."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Subquery
from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from dashboard.configuration.signatures import served_signature
from dashboard.models import Model, Release, Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.releases.selectors import current_document, wanted_versions
from dashboard.releases.signatures import answering_version
from repository.config.document import Document


@dataclass(frozen=True, slots=True)
class Caller:
    """An ensemble that calls a model. troubles: the faults that it would have, as clauses; [] if it would still work."""

    name: str
    troubles: list[str]


def callers_of(name: str) -> list[str]:
    """Return the names of the ensembles that have the model as a step."""
    return [ensemble for ensemble, _ in _calls(name)]


def callers_after(model: Model, after: Signature, served: Callable[[], Collection[int]]) -> list[Caller]:
    """Return the ensembles that call a model, with the faults that they would have if the model's tensors changed.

    after: the tensors of the version that will answer steps that name no version; an empty list of inputs or outputs means that
    they are unknown. served: returns the versions that will be served; called only if an ensemble calls the model.
    """
    calls = _calls(model.name)
    if not calls:
        return []
    before = served_signature(current_document(model), answering_version(model))
    now, then = wanted_versions(model), served()
    return [
        Caller(name, [trouble for step in steps for trouble in _troubles(step, before, after, now, then)])
        for name, steps in calls
    ]


def callers_of_release(model: Model, release: Release) -> list[Caller]:
    """Return the ensembles that call a model, with the faults that they would have if the model went back to a release."""
    version = model.versions.filter(number=release.answers).first()
    return callers_after(model, served_signature(release.document, version), lambda: release.versions)


def _calls(name: str) -> list[tuple[str, list[ModelEnsembling.Step]]]:
    """Return the ensembles with the steps that call the model, in one query."""
    newest = Release.objects.filter(model=OuterRef("pk")).order_by("-number").values("text")[:1]
    ensembles = Model.objects.filter(Exists(Version.objects.filter(model=OuterRef("pk"), format="ensemble")))
    rows = ensembles.exclude(name=name).annotate(text=Subquery(newest)).filter(text__contains=name).order_by("name")
    found = ((ensemble, _steps(text, name)) for ensemble, text in rows.values_list("name", "text"))
    return [(ensemble, steps) for ensemble, steps in found if steps]


def _steps(text: str, name: str) -> list[ModelEnsembling.Step]:
    document = Document.read(text)
    steps = [] if document.mistake else document.message.ensemble_scheduling.step
    return [step for step in steps if step.model_name == name]


def _troubles(
    step: ModelEnsembling.Step, before: Signature, after: Signature, now: Collection[int], then: Collection[int]
) -> Iterator[str]:
    if step.model_version > 0:  # the step keeps calling the version that it names
        if step.model_version in now and step.model_version not in then:
            yield f"it calls version {step.model_version}, which is not served any more"
        return
    inputs, outputs = _by_name(after.get("inputs", [])), _by_name(after.get("outputs", []))
    if inputs:
        yield from _changed("input", "sends", step.input_map, _by_name(before.get("inputs", [])), inputs)
        for name, row in inputs.items():
            if name not in step.input_map and not row.get("optional"):
                yield f"it does not send input '{name}'"
    if outputs:
        yield from _changed("output", "takes", step.output_map, _by_name(before.get("outputs", [])), outputs)


def _changed(
    kind: str, verb: str, names: Collection[str], before: dict[str, TensorRow], after: dict[str, TensorRow]
) -> Iterator[str]:
    """Yield the faults of the tensors that a step maps. verb: whether the ensemble "sends" or "takes" the tensors."""
    for name in sorted(names):
        row, was = after.get(name), before.get(name)
        if row is None:
            yield f"it {verb} {kind} '{name}', which is not there any more"
        elif was and row["datatype"] and was["datatype"] and _in_words(row) != _in_words(was):
            yield f"{kind} '{name}', which it {verb}, is {_in_words(row)}, where it was {_in_words(was)}"


def _by_name(rows: list[TensorRow]) -> dict[str, TensorRow]:
    return {row["name"]: row for row in rows}


def _in_words(row: TensorRow) -> str:
    return f"{row['datatype']} {row['shape']}"
