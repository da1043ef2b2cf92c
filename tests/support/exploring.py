"""How Hypothesis looks for examples: the same ones on every run, or, under `make fuzz`, other ones each time.

`make fuzz` sets FUZZ_SEED, and FUZZ_FOLDER, where what it finds is kept; both stand in docs/testing.md.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SEED = int(os.environ.get("FUZZ_SEED") or 0)
TIMES = int(os.environ.get("FUZZ_TIMES") or 10)  # so many times the examples of an ordinary run
FOLDER = Path(os.environ.get("FUZZ_FOLDER") or "fuzz-findings")


def use_profile() -> None:
    """Called once, before any test is read."""
    own: dict[str, Any] = {"derandomize": True}
    if SEED:
        # Explaining a failure runs as many examples again, against a server; what is shrunk says enough.
        phases = [phase for phase in Phase if phase is not Phase.explain]
        own = {"database": DirectoryBasedExampleDatabase(FOLDER / "examples"), "print_blob": True, "phases": phases}
    settings.register_profile("slipway", deadline=None, suppress_health_check=list(HealthCheck), **own)
    settings.load_profile("slipway")


def explore(items: list[pytest.Item]) -> None:
    """Give each collected test that Hypothesis drives this run's seed and more examples."""
    tests = {getattr(item, "obj", None) for item in items} if SEED else set()
    for test in tests:
        if getattr(test, "is_hypothesis_test", False):
            ordinary = test._hypothesis_internal_use_settings or settings()
            test._hypothesis_internal_use_settings = settings(ordinary, max_examples=ordinary.max_examples * TIMES)
            test._hypothesis_internal_use_seed = SEED


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a rule machine; the test that calls this is marked `hypothesis`, as the others are by themselves."""
    if SEED:
        machine._hypothesis_internal_use_seed = SEED  # type: ignore[attr-defined]
    times = TIMES if SEED else 1
    run_state_machine_as_test(machine, settings=settings(max_examples=examples * times, stateful_step_count=steps))
