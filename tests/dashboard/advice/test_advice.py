"""Advice is given if it matters and is certain, and what it predicts comes true."""

import pytest

from dashboard.advice.advice import Advice, advise
from dashboard.advice.candidates import setting_of
from dashboard.advice.simulation import ServiceTime
from dashboard.advice.traffic import Traffic
from dashboard.metrics.usage import Usage
from repository.config.document import Document
from tests.dashboard.advice.shapes import SHAPES, poisson, steady, traffic

SERVICE = ServiceTime(4e6, 3e5, spread=0.03)
TEXT = """# The sleeper of the house.
name: "m"
backend: "python"
max_batch_size: 16
instance_group {{ count: {instances} kind: KIND_CPU }}
{batching}
"""


def document(batching: str = "", instances: int = 1) -> Document:
    return Document.read(TEXT.format(batching=batching, instances=instances))


def advised(times: list[int], given: Document, service: ServiceTime = SERVICE) -> Advice | None:
    return advise(traffic(times, setting_of(given), service), given).advice


def holds(advice: Advice, times: list[int]) -> None:
    """What other requests of the same shape meet with the advised configuration is what was predicted, within a tenth."""
    after = traffic(times, setting_of(advice.document), SERVICE, seed=9)
    assert 0.9 * advice.p99_ms.low <= after.took_ms(0.99) <= 1.1 * advice.p99_ms.high
    assert 0.9 * advice.busy.low <= after.busy_instances <= 1.1 * advice.busy.high


@pytest.mark.parametrize("shape", SHAPES)
def test_a_delay_that_brings_little_is_shortened(shape: str) -> None:
    times = SHAPES[shape](100, 4000)
    advice = advised(times, document("dynamic_batching { max_queue_delay_microseconds: 40000 }"))
    assert advice is not None
    assert advice.p99_change < -0.3
    assert setting_of(advice.document).delay_ns < 20_000_000
    assert "the queue delay is a part of that wait" in advice.why
    holds(advice, times)


def test_for_a_gap_of_5_ms_and_batches_of_16_a_delay_of_15_ms_is_advised() -> None:
    """The rule of thumb: three gaps, so that some requests join, and p99 does not become much longer."""
    service = ServiceTime(15e6, 1e5, spread=0.03)
    advice = advised(poisson(200, 4000), document("dynamic_batching { max_queue_delay_microseconds: 40000 }"), service)
    assert advice is not None
    assert setting_of(advice.document).max_rows == 16
    assert setting_of(advice.document).delay_ns == pytest.approx(15e6, rel=0.1)
    assert advice.p99_change < -0.1
    assert "A request comes every" in advice.why


def test_a_busy_model_is_advised_to_batch_and_told_what_that_costs() -> None:
    times = poisson(215, 4000)
    advice = advised(times, document("dynamic_batching { }"))
    assert advice is not None
    assert advice.busy_change < -0.1
    assert advice.p99_change < 0.25
    assert "queue delay" not in advice.why
    assert f"{-100 * advice.busy_change:.0f} % less for each request" in advice.effect
    holds(advice, times)


def test_another_instance_is_advised_where_requests_wait_for_a_busy_one() -> None:
    times = SHAPES["bursts"](120, 4000)
    advice = advised(times, document())
    assert advice is not None
    assert advice.p99_change < -0.3
    assert [(one.field, one.before) for one in advice.changes] == [("instance_group.count", "1")]
    holds(advice, times)


def test_without_free_cores_no_instance_is_advised() -> None:
    given = document()
    busy = traffic(SHAPES["bursts"](120, 4000), setting_of(given), SERVICE)
    used_up = Traffic(busy.usage, busy.seconds, cpu=2 * busy.busy_instances, cores=2)
    assert advise(used_up, given).advice is None
    unknown = Traffic(busy.usage, busy.seconds, cpu=0.1, cores=None)
    assert advise(unknown, given).advice is None


def test_an_advice_changes_only_what_it_names() -> None:
    given = document("dynamic_batching { max_queue_delay_microseconds: 40000 preserve_ordering: true }")
    advice = advised(poisson(100, 4000), given)
    assert advice is not None
    assert advice.document.text.startswith("# The sleeper of the house.\n")
    assert advice.document.message.dynamic_batching.preserve_ordering
    assert advice.document.problems("m") == []
    assert "-dynamic_batching { max_queue_delay_microseconds: 40000" in advice.difference.replace("- ", "-")
    assert advice.summary.startswith("max_queue_delay_microseconds: 40000 -> ")


def test_a_configuration_that_fits_gets_no_advice() -> None:
    given = document("dynamic_batching { }")
    finding = advise(traffic(poisson(20, 4000), setting_of(given), SERVICE), given)
    assert finding.advice is None
    assert "beyond the uncertainty" in finding.reason


def test_unknown_times_of_larger_batches_are_named() -> None:
    given = document()
    finding = advise(traffic(steady(100, 4000), setting_of(given), SERVICE), given)
    assert finding.advice is None
    assert "the time of a larger batch is not known" in finding.reason


def test_too_little_traffic_gets_no_advice() -> None:
    given = document("dynamic_batching { max_queue_delay_microseconds: 40000 }")
    finding = advise(traffic(poisson(100, 400), setting_of(given), SERVICE), given)
    assert finding.advice is None
    assert "400 of 1,000 requests" in finding.reason
    assert advise(Traffic(Usage(), 900), given).advice is None


def test_times_that_batching_does_not_explain_get_no_advice() -> None:
    given = document("dynamic_batching { max_queue_delay_microseconds: 40000 }")
    found = traffic(poisson(100, 4000), setting_of(given), SERVICE)
    slow = {bucket + 48: count for bucket, count in found.usage.request.items()}  # each request eight times as long
    found.usage.request.clear()
    found.usage.request.update(slow)
    finding = advise(found, given)
    assert finding.advice is None
    assert "Something else than batching" in finding.reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("sequence_batching { }", "sequence batcher"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ("response_cache { enable: true }", "response cache"),
        ("max_batch_size: x", "mistake"),
        ('platform: "ensemble" ensemble_scheduling { }', "ensemble"),
    ],
)
def test_models_that_the_simulation_does_not_describe_get_no_advice(more: str, reason: str) -> None:
    given = Document.read(f'name: "m" {more}')
    finding = advise(Traffic(Usage(success=10_000, gaps={5: 10_000}), 100), given)
    assert finding.advice is None
    assert reason in finding.reason
