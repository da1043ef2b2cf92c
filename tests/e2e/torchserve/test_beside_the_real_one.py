"""Every request goes to the real TorchServe 0.12 and to Slipway in its place: both answer alike, or as `differences.py` says.

Both serve the same archives from the same model store, by the same command line and config.properties.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.torchserve import calls, details, management, predictions, tokens
from tests.e2e.torchserve.archives import make_archives
from tests.e2e.torchserve.asking import Answer, Ask, ask
from tests.e2e.torchserve.differences import DIFFERENCES
from tests.support.serving_process import START_TIMEOUT_S, wait_until
from tests.support.torchserve_process import NEEDS_JAVA, OURS, REAL, Server, torchserve

pytestmark = [NEEDS_JAVA, pytest.mark.long]

LOADED = ["acts", "rows", "eager", "onnx", "service", "stream", "batched"]
PROPERTIES = [
    f"load_models={','.join(f'{name}.mar' for name in LOADED)}",
    "default_workers_per_model=1",
    "metrics_mode=prometheus",
    "model_metrics_auto_detect=true",
    "disable_system_metrics=true",
    "max_request_size=200000",
    "cors_allowed_origin=https://example.org",
    "cors_allowed_methods=GET, POST",
    "cors_allowed_headers=X-One",
]


@dataclass(frozen=True)
class Both:
    real: Server
    ours: Server

    def each(self, does: Callable[[Server], object]) -> tuple[object, object]:
        """Return what something comes to on both, at the same time."""
        with ThreadPoolExecutor(2) as pool:
            return tuple(pool.map(does, (self.real, self.ours)))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    make_archives(folder / "store", folder / "parts")
    (folder / "store" / "broken.mar").write_text("no archive")
    details.write_archives(folder / "store")
    return folder / "store"


@pytest.fixture(scope="module")
def both(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """The two servers, once every model of theirs answers."""
    folder = tmp_path_factory.mktemp("both")
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                torchserve(
                    name,
                    folder / name.split()[-1],
                    [f"model_store={store}", *PROPERTIES],
                    ["--disable-token-auth", "--enable-model-api"],
                )
            )
            for name in (REAL, OURS)
        ]
        both = Both(*started)
        for name in LOADED:
            both.each(
                lambda server, name=name: wait_until(
                    lambda: ready(server, name), START_TIMEOUT_S, f"{name} of {server.name}"
                )
            )  # type: ignore[misc]
        yield both


def ready(server: Server, name: str) -> bool:
    """Whether the first worker of a model has started; no prediction is made, since those are counted."""
    found = ask(server, Ask("", f"/models/{name}", method="GET", listener="management")).json()
    if not isinstance(found, list):
        return False
    (described,) = found
    return any(worker["status"] == "READY" for worker in described["workers"])


def compare(title: str, real: Answer, ours: Answer) -> None:
    """Both answers are one, unless the table has a reason; a reason that is no longer true has no place there."""
    difference = DIFFERENCES.get(title)
    if difference is None:
        assert ours == real
    else:
        assert ours != real, f"{title}: no difference any more"
        assert (ours.status, difference.ours in ours.body) == (difference.status, True), ours


def titles(asks: Sequence[Ask | calls.Call]) -> list[str]:
    return [one.title for one in asks]


@pytest.mark.parametrize("one", predictions.ASKS, ids=titles(predictions.ASKS))
def test_the_inference_api_answers_alike(both: Both, one: Ask) -> None:
    compare(one.title, ask(both.real, one), ask(both.ours, one))


@pytest.mark.parametrize("one", management.LISTS, ids=titles(management.LISTS))
def test_models_are_listed_and_described_alike(both: Both, one: Ask) -> None:
    compare(one.title, ask(both.real, one), ask(both.ours, one))


@pytest.mark.parametrize("one", calls.INFERENCE_CALLS + calls.MANAGEMENT_CALLS, ids=lambda one: one.title)
def test_grpc_answers_alike(both: Both, one: calls.Call) -> None:
    real, ours = calls.answer_of(both.real, one), calls.answer_of(both.ours, one)
    difference = DIFFERENCES.get(f"gRPC: {one.title}")
    if difference is None:
        assert ours == real
    else:
        assert ours != real, f"{one.title}: no difference any more"
        assert difference.ours in str(ours)


def test_a_batch_is_handed_over_whole_and_answered_one_by_one(both: Both) -> None:
    def four(server: Server) -> object:
        codes = ("200", "201", "404", "200")
        return together(server, [predictions.act("batch", code.encode(), "/predictions/batched") for code in codes])

    real, ours = both.each(four)
    assert ours == real


def test_one_failure_fails_its_whole_batch(both: Both) -> None:
    def four(server: Server) -> object:
        return together(
            server,
            [predictions.act("batch", code.encode(), "/predictions/batched") for code in ("200", "0", "200", "200")],
        )

    real, ours = both.each(four)
    assert ours == real


def test_a_full_queue_refuses_alike(both: Both) -> None:
    """With the same status and type; TorchServe's sentence says that there is no worker, Slipway's that the queue is full."""

    def twenty(server: Server) -> set[tuple[int, str]]:
        answers = together(server, [predictions.act("waits", target="/predictions/batched")] * 20)
        return {(one.status, "" if one.status == 200 else one.json()["type"]) for one in answers}

    real, ours = both.each(twenty)
    assert ours == real


def together(server: Server, asks: Sequence[Ask]) -> list[Answer]:
    """Send all requests at once; their places in the batch are left out of the answers, because they differ from run to run."""
    with ThreadPoolExecutor(len(asks)) as pool:
        answers = pool.map(lambda one: ask(server, one), asks)
        return [replace(answer, reason=answer.reason.rstrip("0123456789")) for answer in answers]


COUNTED = ("ts_inference_requests", "Seen", "Held", "Full", "Thought")
# Which every request reached, and which are still there.
COUNTED_MODELS = {"acts", "rows", "eager", "stream", "batched"}


def test_metrics_have_the_same_names_labels_and_counts(both: Both) -> None:
    """What is measured differs; what is counted does not, since every request before this was made to both."""

    def counted(server: Server) -> dict[str, object]:
        found = metrics_of(server)
        return {
            "kinds": {name: one.kind for name, one in found.items()},
            "labels": {name: one.labels for name, one in found.items()},
            **{name: found[name].of_models() for name in COUNTED if name in found},
        }

    with contextlib.suppress(AssertionError):  # in both, what a handler counts comes after its answer
        wait_until(lambda: "Seen" in (ours := counted(both.ours)) and ours == counted(both.real))
    assert counted(both.ours) == counted(both.real)


def test_labels_end_with_a_comma_as_people_read_them(both: Both) -> None:
    for server in (both.real, both.ours):
        text = ask(server, Ask("", "/metrics", method="GET", listener="metrics")).body
        samples = [line for line in text.splitlines() if "{" in line and not line.startswith("#")]
        assert samples
        assert [line for line in samples if not re.fullmatch(r'\w+\{(\w+="[^"]*",)+\} \S+', line)] == []


@dataclass
class Family:
    """A metric: its type, and what each of its series counts, whose labels have no order."""

    kind: str
    series: dict[frozenset[tuple[str, str]], float]

    @property
    def labels(self) -> set[frozenset[str]]:
        return {frozenset(name for name, _ in labels) for labels in self.series}

    def of_models(self) -> dict[frozenset[tuple[str, str]], float]:
        found = {
            labels: value for labels, value in self.series.items() if {value for _, value in labels} & COUNTED_MODELS
        }
        assert found
        return found


def metrics_of(server: Server) -> dict[str, Family]:
    text = ask(server, Ask("", "/metrics", method="GET", listener="metrics")).body
    return {
        family.name: Family(family.type, {frozenset(one.labels.items()): one.value for one in family.samples})
        for family in text_string_to_metric_families(text)
    }


def test_a_worker_that_dies_is_told_and_replaced_alike(both: Both) -> None:
    def life(server: Server) -> list[Answer]:
        died = ask(server, predictions.act("leaves"))
        return [died, ask(server, predictions.act("echo"))]

    real, ours = both.each(life)
    assert ours == real


def test_metrics_of_a_worker_that_was_replaced_begin_anew(both: Both) -> None:
    """Unlike in TorchServe, which goes on counting: the worker of the test before this has taken them with it."""
    assert "Seen" in metrics_of(both.real)
    wait_until(lambda: "Seen" not in metrics_of(both.ours), what="the end of what the old worker has counted")


def test_a_handler_that_takes_too_long_is_told_and_replaced_alike(both: Both) -> None:
    def life(server: Server) -> list[Answer]:
        url = "/models?url=unpacked&model_name=timed&initial_workers=1&response_timeout=5"
        return [
            ask(server, management.manage("", "POST", url)),
            ask(server, predictions.act("sleeps", target="/predictions/timed")),
            ask(server, predictions.act("echo", target="/predictions/timed")),
            ask(server, management.manage("", "DELETE", "/models/timed")),
        ]

    real, ours = both.each(life)
    assert ours == real


@pytest.mark.parametrize("one", management.REFUSED, ids=titles(management.REFUSED))
def test_what_cannot_be_managed_is_refused_alike(both: Both, one: Ask) -> None:
    compare(one.title, ask(both.real, one), ask(both.ours, one))


@pytest.mark.parametrize("steps", [management.LIFE, management.WORKFLOWS], ids=["models", "workflows"])
def test_models_and_workflows_live_alike(both: Both, steps: list[Ask]) -> None:
    """From registering to unregistering, step by step; a step depends on those before it."""
    real, ours = both.each(lambda server: [ask(server, one) for one in steps])
    different = {}
    for one, theirs, mine in zip(steps, real, ours, strict=True):  # type: ignore[call-overload]
        try:
            compare(one.title, theirs, mine)
        except AssertionError:
            different[one.title] = (theirs, mine)
    assert different == {}


def test_what_fails_and_what_is_seldom_asked_comes_out_alike(both: Both) -> None:
    """Near the end: TorchServe goes on listing what found no memory."""
    real, ours = both.each(lambda server: [ask(server, one) for one in details.ASKS])
    different = {}
    for one, theirs, mine in zip(details.ASKS, real, ours, strict=True):  # type: ignore[call-overload]
        try:
            compare(one.title, theirs, mine)
        except AssertionError:
            different[one.title] = (theirs, mine)
    assert different == {}


def test_a_handler_that_cannot_be_initialized_is_refused_alike(both: Both) -> None:
    """Last, since TorchServe may go on listing it; where the import fails, and always in Slipway, it is gone again."""
    url = "/models?url=fails_to_initialize.mar&initial_workers=1"
    real, ours = both.each(lambda server: ask(server, management.manage("", "POST", url)))
    assert ours == real


@pytest.fixture(scope="module")
def with_tokens(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Two more servers, with no model, as they are without any flag: tokens wanted, the model API off."""
    folder = tmp_path_factory.mktemp("tokens")
    with ExitStack() as stack:
        properties = [f"model_store={store}"]
        started = [
            stack.enter_context(torchserve(name, folder / name.split()[-1], properties)) for name in (REAL, OURS)
        ]
        yield Both(*started)


def test_the_key_file_is_the_same(with_tokens: Both) -> None:
    def shape(server: Server) -> object:
        mode = (server.folder / "key_file.json").stat().st_mode
        return mode, {
            name: {key: len(value) for key, value in entry.items() if key == "key"}
            for name, entry in tokens.keys_of(server).items()
        }

    assert shape(with_tokens.ours) == shape(with_tokens.real)


@pytest.mark.parametrize("one", tokens.ASKS, ids=titles(tokens.ASKS))
def test_tokens_are_wanted_alike(with_tokens: Both, one: Ask) -> None:
    real, ours = (ask(server, tokens.with_keys(one, server)) for server in (with_tokens.real, with_tokens.ours))
    compare(one.title, real, ours)
