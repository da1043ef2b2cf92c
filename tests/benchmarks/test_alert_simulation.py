"""Every planted fault of a small simulation is told, once or as it becomes more urgent, and nothing else is."""

from benchmarks.alerts import FAULTS, Outcome, simulate, table


def test_planted_faults_are_found_and_nothing_else() -> None:
    whole = Outcome()
    for number in (0, 3):
        whole.add(simulate(45, number))
    told = [fault.name for fault in FAULTS if fault.told]
    assert whole.false == 0
    assert sum(whole.planted[name] for name in told) > 3
    assert {name: whole.found[name] for name in told} == {name: whole.planted[name] for name in told}
    assert whole.again.total() == 0
    assert "False alarms: **0**" in table(whole, 45, 2)
