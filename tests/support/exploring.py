"""How Hypothesis looks for examples: the same examples on every run, but other examples on each run of `make fuzz`.

`make fuzz` sets FUZZ_SEED, and FUZZ_FOLDER, the folder for its findings. docs/testing.md describes both.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SEED = int(os.environ.get("FUZZ_SEED") or 0)
TIMES = int(os.environ.get("FUZZ_TIMES") or 10)  # the number of examples, as a multiple of an ordinary run
FOLDER = Path(os.environ.get("FUZZ_FOLDER") or "fuzz-findings")


def use_profile() -> None:
    """Load the profile of Hypothesis. Called once, before any test is imported."""
    own: dict[str, Any] = {"derandomize": True}
    if SEED:
        # The phase `explain` would run as many examples again, against a server. The smallest example says enough.
        phases = [phase for phase in Phase if phase is not Phase.explain]
        own = {"database": DirectoryBasedExampleDatabase(FOLDER / "examples"), "print_blob": True, "phases": phases}
    settings.register_profile("slipway", deadline=None, suppress_health_check=list(HealthCheck), **own)
    settings.load_profile("slipway")


def explore(items: list[pytest.Item]) -> None:
    """Give the seed of this run, and more examples, to each collected test of Hypothesis."""
    tests = {getattr(item, "obj", None) for item in items} if SEED else set()
    for test in tests:
        if getattr(test, "is_hypothesis_test", False):
            ordinary = test._hypothesis_internal_use_settings or settings()
            test._hypothesis_internal_use_settings = settings(ordinary, max_examples=ordinary.max_examples * TIMES)
            test._hypothesis_internal_use_seed = SEED


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a rule machine. The calling test needs the mark `hypothesis`, which other tests of Hypothesis get automatically."""
    if SEED:
        machine._hypothesis_internal_use_seed = SEED  # type: ignore[attr-defined]
    times = TIMES if SEED else 1
    run_state_machine_as_test(machine, settings=settings(max_examples=examples * times, stateful_step_count=steps))
