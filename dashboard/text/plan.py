"""Compares a folder of text with the installation: what would be made, changed and removed, and the difference as a diff."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dashboard.access.authorisation import Actor
from dashboard.shared.exceptions import DashboardError
from dashboard.text.folder import File, Files, installation
from dashboard.text.kinds import Change, Kind
from dashboard.text.models import MODELS
from dashboard.text.shapes import Place
from dashboard.text.table import KINDS
from repository.config.lines import unified


class Step(NamedTuple):
    """One change. place: of its entry in the folder."""

    kind: Kind
    change: Change
    place: Place

    @property
    def in_words(self) -> str:
        """The entry in words, such as "person 'anna'"."""
        name = str(self.change.key)[:200] or self.change.scope
        where = f" of '{self.change.scope}'" if self.kind.of_model and self.kind is not MODELS else ""
        return f"{self.kind.one}{where}" if not self.change.key and where else f"{self.kind.one} '{name}'{where}"


@dataclass(frozen=True, slots=True)
class Plan:
    """steps: in the order in which they are applied. kept: what the folder does not have, in words; it stays without --prune.
    diffs: a unified diff of each file that changes. loaded: the models of the folder, and whether each should be loaded."""

    steps: list[Step] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    loaded: dict[str, bool] = field(default_factory=dict)

    def refusals(self, actor: Actor) -> dict[int, str]:
        """Return why steps cannot be applied: number of the step -> one sentence with file and line."""
        found: dict[int, str] = {}
        hopeless: set[str] = set()  # models that cannot be made: one sentence for each is enough
        for number, (kind, change, place) in enumerate(self.steps):
            if change.new_model and kind is not MODELS and not self._makes(change.scope):
                reason = "there is no such model, and its folder has no model.yaml"
            else:
                reason = "" if change.scope in hopeless else _reason(kind, change, actor)
            if reason or change.scope in hopeless:
                found[number] = place.error(reason).message if reason else ""
            if reason and change.new_model and (kind is MODELS or not self._makes(change.scope)):
                hopeless.add(change.scope)
        return found

    def _makes(self, scope: str) -> bool:
        return scope in self.loaded


def _reason(kind: Kind, change: Change, actor: Actor) -> str:
    try:
        return kind.refused(change, actor)
    except DashboardError as error:
        return error.message


def plan_of(wanted: Files, *, prune: bool = False) -> Plan:
    """Return the plan that brings the installation to the files of a folder.

    An entry that the folder lacks is removed only with `prune`; one in a file that the folder lacks is not looked at.
    """
    present, plan = installation(), Plan()
    models = {scope for _, scope in wanted if scope}
    for (name, scope), file in wanted.items():
        if name == MODELS.name:
            plan.loaded[scope] = bool(file.value.get("loaded"))
    order = {kind.name: number for number, kind in enumerate(KINDS)}
    for key in sorted(wanted, key=lambda key: (order[key[0]], key[1])):
        file = wanted[key]
        new_model = file.kind.of_model and (MODELS.name, file.scope) not in present
        before = present.get(key)
        after = _compare(plan, before, file, new_model, prune)
        _add_diff(plan, before, after)
    if models:
        _compare_models(plan, present, models, prune)
    return plan


def _compare(plan: Plan, before: File | None, file: File, new_model: bool, prune: bool) -> File:
    """Add the steps of a file, and return the file as it will be."""
    old, new = before.entries() if before is not None else {}, file.entries()
    for key, entry in new.items():
        if key not in old or old[key] != entry:
            change = Change(file.scope, key, old.get(key), entry, new_model)
            plan.steps.append(Step(file.kind, change, file.place_of(key)))
    stays = {}
    for key in old.keys() - new.keys():
        step = Step(file.kind, Change(file.scope, key, old[key], None), file.place)
        if prune and not file.kind.lasting(old[key]):
            plan.steps.append(step)
            continue
        stays[key] = old[key]
        if not file.kind.lasting(old[key]):
            plan.kept.append(step.in_words)
    plan.kept.sort()
    return file.with_entries({**new, **stays})


def _compare_models(plan: Plan, present: Files, models: set[str], prune: bool) -> None:
    """Add what becomes of the models that the folder lacks."""
    for (name, scope), file in present.items():
        if name != MODELS.name or scope in models:
            continue
        step = Step(MODELS, Change(scope, "", file.value, None), Place(file.path))
        if not prune:
            plan.kept.append(step.in_words)
            continue
        plan.steps.append(step)
        for gone in _of_model(present, scope):
            _add_diff(plan, gone, None)


def _of_model(present: Files, scope: str) -> Iterator[File]:
    return (file for (_, other), file in present.items() if other == scope)


def _add_diff(plan: Plan, before: File | None, after: File | None) -> None:
    file = after or before
    if file is None or (before is not None and after is not None and before.value == after.value):
        return
    old, new = (one.text if one is not None else "" for one in (before, after))
    if diff := unified(old, new, old_name=f"installation/{file.path}", new_name=f"folder/{file.path}"):
        plan.diffs.append(diff)
