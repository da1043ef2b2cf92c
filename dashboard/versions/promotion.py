"""Previews making a version live: the effects on clients, and the configuration that fits it."""

from dataclasses import dataclass
from typing import Literal

from dashboard.configuration.callers import Caller, callers_after
from dashboard.configuration.clients import ForClients, for_clients
from dashboard.configuration.services import config_preview
from dashboard.configuration.signatures import served_signature
from dashboard.models import Version
from dashboard.releases.example_fit import unfit_examples
from dashboard.releases.gates import failed_gates
from dashboard.releases.selectors import current_document, fitting_document
from dashboard.releases.services import changed_by_hand
from dashboard.releases.signatures import answering_version
from dashboard.shared.exceptions import Problem
from dashboard.shared.repository_errors import repository_errors
from repository.config.document import Document
from repository.config.lines import unified


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration for making a version live. problems: its mistakes. effect: how a server would apply it.

    over_budget: a clause that says why the version does not keep the model's budget, or pass its replay gate, with it; "" if
    it does.
    """

    document: Document
    diff: str  # the unified diff from the present text
    problems: list[Problem]
    effect: str
    over_budget: str = ""

    @property
    def valid(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)


@dataclass(frozen=True, slots=True)
class Promotion:
    """The effects of making a version live.

    answers: whether the version already answers requests that name no version. clients: the effects on clients, or None if the
    version already answers, or none does. present: the choice with the present configuration. fitting: the choice with the
    configuration that the version served with last, else the one proposed for its file, or None if that is the present one.
    examples: the examples that would not fit any more, with the reasons. callers: the ensembles that call the model, with their
    faults. refusal: a clause that says why no version can be made live now; "" if a version can.
    """

    version: Version
    answers: bool
    clients: ForClients | None
    present: Choice
    fitting: Choice | None
    examples: dict[str, str]
    callers: list[Caller]
    refusal: str

    @property
    def changes(self) -> list[str]:
        """The changes for clients, as sentences without a full stop."""
        return self.clients.changes if self.clients is not None else []

    @property
    def refused(self) -> list[str]:
        """The reasons why requests that are answered now would be refused, as clauses; [] if none would be."""
        return self.clients.refused if self.clients is not None else []

    @property
    def preferred(self) -> Literal["present", "fitting"]:
        """The default selection: the fitting configuration if clients would see changes or the present one is invalid."""
        return "fitting" if self.fitting is not None and (self.changes or not self.present.valid) else "present"

    @property
    def over_budget(self) -> str:
        """Why the version does not keep the budget with the default selection; "" if it does."""
        return (self.fitting if self.fitting is not None and self.preferred == "fitting" else self.present).over_budget

    @property
    def needs_reason(self) -> bool:
        """True if the version passes with no configuration."""
        return all(choice.over_budget for choice in (self.present, self.fitting) if choice is not None)

    @property
    def may_need_reason(self) -> bool:
        """True if there is a configuration with which the version does not pass."""
        return any(choice.over_budget for choice in (self.present, self.fitting) if choice is not None)

    @property
    def possible(self) -> bool:
        """True if there is a configuration that can serve the version."""
        return not self.refusal and (self.present.valid or (self.fitting is not None and self.fitting.valid))


@repository_errors()
def promotion(version: Version) -> Promotion:
    """Return the effects of making a published version live."""
    model = version.model
    now, proposed = current_document(model), fitting_document(version)
    present = _choice(version, now, now)
    fitting = _choice(version, now, proposed) if proposed else None
    if fitting is not None and fitting.document.same_meaning(present.document, [version.number]):
        fitting = None
    document = (fitting or present).document
    signature = served_signature(document, version)
    callers = callers_after(model, signature, lambda: document.versions(model.published_numbers()))
    clients, examples = for_clients(model, version.number, version.signature), unfit_examples(model, signature)
    answers = answering_version(model) == version
    by_hand = changed_by_hand(model)
    return Promotion(version, answers, clients, present, fitting, examples, callers, by_hand)


def _choice(version: Version, now: Document, document: Document) -> Choice:
    if not document.mistake:  # a mistake is reported among the problems of the text
        named = document.with_aliases(now.aliases).without_traffic()
        document = named.live([version.number], version.model.published_numbers())
    preview = config_preview(model_name=version.model.name, document=document)
    diff = unified(now.text, document.text, old_name="now", new_name=f"version {version.number} live")
    answers = now.answers(version.model.published_numbers()) == version.number
    return Choice(document, diff, preview.problems, preview.effect, "" if answers else failed_gates(version, document))
