"""Applies a plan, by the services of the other rooms.

Everything that can be refused is found out before anything is changed. Then each model is changed in one transaction, as is
each other entry: a failure leaves whole models, and applying again goes on from there.
"""

import os
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from django.db import transaction

from dashboard.access.audit import audit_parts, audit_record
from dashboard.access.authorisation import Actor, require
from dashboard.catalog.services import model_load, model_unload
from dashboard.models import Model
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import DesiredState
from dashboard.shared.exceptions import DashboardError, Invalid, Problem
from dashboard.text.kinds import Change, Secrets
from dashboard.text.models import MODELS, VERSIONS
from dashboard.text.plan import Plan, Step
from dashboard.text.shapes import Place
from repository.files.storage import write_atomic

_SHOWN = 10


class Applied(NamedTuple):
    """What became of a plan. failed: one sentence for each thing that was not applied."""

    done: int
    failed: list[str]


class SecretsFile:
    """A new file, readable by its owner only, that gets each secret as soon as it is made: no log has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise Invalid(f"the file '{path}' for secrets is there already; name a new one") from None
        except OSError as error:
            raise Invalid(f"the file '{path}' for secrets cannot be written: {error.strerror}") from None

    def keep(self, whose: str, secret: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{whose}: {secret}\n")


def secrets_needed(plan: Plan) -> list[str]:
    """Return what is made with a secret, in words."""
    made = (step for step in plan.steps if step.change.before is None and step.change.after is not None)
    return [step.in_words for step in made if step.kind.makes_secret(step.change.after)]


def text_apply(
    *,
    plan: Plan,
    actor: Actor,
    partial: bool = False,
    secrets: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Applied:
    """Apply a plan as an actor.

    partial: apply the rest if something cannot be applied; otherwise nothing is, or after a later failure nothing more.
    secrets: a new file for the secrets that are made.
    Raises Forbidden if the actor lacks a right that a step needs. Raises Invalid, with a sentence for each, if steps cannot be
    applied, or if a secret is made and there is no file for it.
    """
    for right in sorted(
        {right for kind, change, _ in plan.steps for right in kind.rights(change)}, key=lambda one: one.name
    ):
        require(actor, right)
    refused = plan.refusals(actor)
    failed = [sentence for sentence in refused.values() if sentence]
    if failed and not partial:
        raise Invalid(f"{_some(failed, '; ')}; nothing was applied", [Problem(sentence) for sentence in failed])
    made = secrets_needed(plan)
    if secrets is None and made:
        raise Invalid(f"new secrets are made for {_some(made)}: name a file for them by --secrets FILE")
    run = _Run(plan, actor, partial, SecretsFile(secrets) if secrets and made else _NoSecrets(), failed)
    try:
        with audit_parts():
            run.steps(_applicable(plan.steps, refused, run.left_out), progress)
            run.loads()
    finally:
        if run.done:
            counted = ", ".join(f"{name} {count}" for name, count in run.done.items())
            audit_record(actor=actor, action="text.apply", summary=f"Applied a text: {counted}", after={**run.done})
    return Applied(run.done.total(), failed)


class _NoSecrets:
    def keep(self, whose: str, secret: str) -> None:
        raise AssertionError("text_apply refuses to make secrets without a file")


class _Run:
    """One application of a plan. done: kind -> how many steps of it were applied. left_out: models that stay as they are,
    because a step of them was refused, or failed."""

    def __init__(self, plan: Plan, actor: Actor, partial: bool, secrets: Secrets, failed: list[str]) -> None:
        self.done: Counter[str] = Counter()
        self.left_out: set[str] = set()
        self._plan, self._actor, self._partial, self._secrets, self._failed = plan, actor, partial, secrets, failed

    def steps(self, steps: list[Step], progress: Callable[[int, int], None]) -> None:
        count = 0
        for group in _groups(steps):
            with self._told(group[0]):
                self._group(group)
                self.done.update(step.kind.name for step in group)
            count += len(group)
            progress(count, len(steps))

    def loads(self) -> None:
        """Load and unload models when all are there. An ensemble loads the models that it calls, so unloads are last."""
        now = dict(Model.objects.filter(name__in=self._plan.loaded).values_list("name", "desired_state"))
        wanted = {
            name: DesiredState.LOADED if load else DesiredState.UNLOADED for name, load in self._plan.loaded.items()
        }
        for state, act in ((DesiredState.LOADED, model_load), (DesiredState.UNLOADED, model_unload)):
            for name in sorted(now.keys() - self.left_out):
                if wanted[name] == state and Model.objects.get(name=name).desired_state != state:
                    with self._told(Step(MODELS, Change(name, "", None, {}), Place(MODELS.path(name)))):
                        act(model=Model.objects.get(name=name), actor=self._actor)
                        self.done.update([str(state)])

    def _group(self, group: list[Step]) -> None:
        scope = group[0].change.scope
        moved = [step for step in group if step.kind is VERSIONS and step.change.after is None]  # by jobs of their own
        whole = [step for step in group if step not in moved]
        removed = any(step.kind is MODELS and step.change.after is None for step in group)
        with nullcontext() if removed or not scope else _one_transaction(scope):
            for step in whole:
                self._write(step)
        for step in moved:
            self._write(step)

    def _write(self, step: Step) -> None:
        try:
            step.kind.write(step.change, self._actor, self._secrets)
        except DashboardError as error:
            field = next((problem.field for problem in getattr(error, "problems", ()) if problem.field), "")
            error.message = step.place.inside(field).error(error.message).message
            raise

    @contextmanager
    def _told(self, step: Step) -> Iterator[None]:
        """With `partial`, keep the sentence of an error and go on; otherwise say what has been applied before it."""
        try:
            yield
        except DashboardError as error:
            if self._partial:
                self._failed.append(error.message)
                self.left_out.add(step.change.scope)
                return
            if self.done:
                error.message += f"; {self.done.total()} changes were applied before: correct this, and apply again"
            raise


def _applicable(steps: list[Step], refused: Container[int], left_out: set[str]) -> list[Step]:
    """Return the steps that are not refused, without those of a model of which one is; add such models to `left_out`."""
    left_out |= {step.change.scope for number, step in enumerate(steps) if step.kind.of_model and number in refused}
    return [step for number, step in enumerate(steps) if number not in refused and step.change.scope not in left_out]


def _groups(steps: list[Step]) -> list[list[Step]]:
    """Return the steps in groups that are applied together: all of one model, and each other one alone."""
    of_models: dict[str, list[Step]] = {}
    for step in steps:
        if step.kind.of_model:
            of_models.setdefault(step.change.scope, []).append(step)
    first = next((number for number, step in enumerate(steps) if step.kind.of_model), len(steps))
    alone = [[step] for step in steps if not step.kind.of_model]
    return [*alone[:first], *of_models.values(), *alone[first:]]


@contextmanager
def _one_transaction(name: str) -> Iterator[None]:
    """Change a model whole or not at all. The config.pbtxt of a folder that was not adopted after all is put back."""
    path = managed_repository().config_path(name)
    before = path.read_bytes() if path.is_file() and not Model.objects.filter(name=name).exists() else None
    try:
        with transaction.atomic():
            yield
    except BaseException:
        if before is not None and path.read_bytes() != before:
            write_atomic(path, before)
        raise


def _some(names: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return between.join(names[:_SHOWN]) + more
