"""Requests of an arm are counted since its rollout began, and in the window of the guardrails."""

from serving.traffic.figures import ArmFigures

MS = 1_000_000


def test_a_request_counts_once_and_only_answers_have_a_latency() -> None:
    figures = ArmFigures(60)
    for _ in range(3):
        figures.begin()
    figures.count(5 * MS, False)
    figures.count(900 * MS, True)
    figures.refuse()
    assert (figures.begun, figures.requests, figures.errors, figures.withdrawn) == (3, 2, 1, 1)
    assert figures.latency.total == 1
    assert figures.latency.sum_ns == 5 * MS


def test_the_window_forgets_what_is_older() -> None:
    figures = ArmFigures(10)
    for second in range(30):
        figures.count(MS, second < 15)
        figures.tick()
    window = figures.window()
    assert 9 <= window.requests <= 10
    assert window.errors == 0
    assert sum(window.latency.values()) == window.requests
    assert window.sum_ns == window.requests * MS
    assert (figures.window_s, len(figures.seconds), figures.seconds[-1].requests) == (10, 10, 1)
    assert figures.errors == 15


def test_a_long_window_keeps_few_readings_and_is_right_to_a_sixtieth() -> None:
    figures = ArmFigures(3600)
    for _ in range(2 * 3600):
        figures.count(MS, False)
        figures.tick()
    assert 3600 - 60 <= figures.window().requests <= 3600
    assert len(figures._readings) <= 60


def test_a_window_that_has_not_filled_holds_all_there_is() -> None:
    figures = ArmFigures(300)
    figures.tick()
    figures.count(MS, True)
    assert figures.window().requests == 1
    assert figures.window().errors == 1


def test_requests_that_stay_without_an_answer_are_named() -> None:
    figures = ArmFigures(60)
    for _ in range(4):
        figures.begin()
    figures.count(MS, False)
    figures.refuse()
    assert figures.waiting(1) == 0
    figures.tick()
    assert figures.waiting(1) == 0, "they may have come a moment ago"
    figures.tick()
    figures.tick()
    assert figures.waiting(2) == 2
    assert figures.waiting(3) == 0
    figures.begin()
    figures.tick()
    assert figures.waiting(1) == 2, "a new one has not waited"
    figures.count(MS, False)
    figures.count(MS, False)
    assert figures.waiting(3) == 0
