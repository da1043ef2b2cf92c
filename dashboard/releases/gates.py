"""Everything that a version must pass before it goes live: the budget of its model, and the replay gate."""

from dashboard.access.authorisation import Actor
from dashboard.models import Model, Version
from dashboard.releases.budgets import in_words, refuse_over_budget, refuse_unmeasured, verdict
from dashboard.releases.replay_gates import gate_in_words, refuse_at_replay_gate, refuse_unreplayed, replay_verdict
from repository.config.document import Document


def refuse_at_gates(*, version: Version, document: Document, actor: Actor, override: str = "") -> None:
    """Raise Conflict if the version does not pass, unless the actor gives a reason to go on, which is recorded for each gate.

    document: the configuration that would serve.
    """
    if version.model.budget:
        refuse_over_budget(version=version, document=document, actor=actor, override=override)
    if version.model.replay_gate:
        refuse_at_replay_gate(version=version, document=document, actor=actor, override=override)


def refuse_unproved(*, model: Model, number: int) -> None:
    """Raise Conflict for a version that is not yet published and would go live, if the model has a gate."""
    if model.budget:
        refuse_unmeasured(model=model, number=number)
    if model.replay_gate:
        refuse_unreplayed(model=model, number=number)


def gates_in_words(model: Model) -> str:
    """Return what a version of a model must pass, as sentences; "" for nothing."""
    sentences = []
    if model.budget:
        sentences.append(f"The budget is {in_words(model.budget)}: measure it, or give a reason below.")
    if model.replay_gate:
        gate = gate_in_words(model.replay_gate)
        sentences.append(f"The replay gate is that {gate}: replay its capture, or give a reason below.")
    return " ".join(sentences)


def failed_gates(version: Version, document: Document) -> str:
    """Return why a version with this configuration may not go live, as a clause; "" if it may."""
    found = verdict(version, document), replay_verdict(version, document)
    return "; ".join(one.why for one in found if one is not None and one.why)
