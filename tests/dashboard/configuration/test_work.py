"""A text, a list or a form that a person sends takes work in proportion to its length."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.http import QueryDict
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.configuration import services
from dashboard.configuration.services import config_apply, config_preview
from dashboard.models import Version
from dashboard.releases.signatures import tensor_changes
from dashboard.rollouts.form import Form
from dashboard.uploads.services import _checked_files
from repository.config import model_config, validation
from repository.config.document import Document
from repository.config.file_check import ModelFile, misfits
from repository.config.lines import unified
from repository.config.signature import Signature, TensorSignature
from repository.config.text import dropped_comments
from repository.config.validation import validate
from repository.core import golden
from repository.core.errors import InvalidConfig
from tests.dashboard.client_that_goes import asking, go
from tests.support.serving_process import PATIENCE_S
from tests.support.work_meter import grows_evenly

HEAD = 'backend: "onnxruntime"\nmax_batch_size: 8\n'
TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\noutput { name: "y" data_type: TYPE_FP32 dims: 4 }\n'


def lines(n: int, line: str) -> str:
    """A line for each number, in place of "#"."""
    return "".join(line.replace("#", str(number)) + "\n" for number in range(n))


def ensemble(n: int, step: Callable[[int], str]) -> str:
    steps = "".join(f'step {{ model_name: "m" {step(index)} }}\n' for index in range(n))
    return 'platform: "ensemble"\n' + TENSORS + "ensemble_scheduling {\n" + steps + "}\n"


def mapped(read: str, written: str) -> str:
    return f'input_map {{ key: "a" value: "{read}" }} output_map {{ key: "b" value: "{written}" }}'


def parameter(name: str, value: object) -> str:
    return f"parameters {{ key: \"slipway.{name}\" value {{ string_value: '{json.dumps(value)}' }} }}\n"


TEXTS: dict[str, Callable[[int], str]] = {
    "inputs that the file has not": lambda n: (
        HEAD + TENSORS + lines(n, 'input { name: "e#" data_type: TYPE_FP32 dims: 1 }')
    ),
    "inputs on one line": lambda n: HEAD + TENSORS + 'input { name: "e" data_type: TYPE_FP32 dims: 1 } ' * n,
    "inputs without anything": lambda n: HEAD + lines(n, 'input { name: "e#" }'),
    "inputs that are given twice": lambda n: HEAD + TENSORS + lines(n, 'input { name: "x" dims: 0 }'),
    "dims": lambda n: HEAD + f'input {{ name: "x" dims: [ {", ".join(["0"] * n)} ] }}',
    "instance groups": lambda n: HEAD + TENSORS + lines(n, "instance_group { count: -1 gpus: [ -1 ] kind: KIND_CPU }"),
    "parameters": lambda n: HEAD + TENSORS + lines(n, 'parameters { key: "slipway.#" value { string_value: "1" } }'),
    "samples for warm-up": lambda n: (
        HEAD + TENSORS + lines(n, 'model_warmup { name: "#" batch_size: 99 inputs { key: "z" value { dims: 0 } } }')
    ),
    "inputs of a sample for warm-up": lambda n: (
        HEAD + TENSORS + "model_warmup {" + lines(n, 'inputs { key: "z#" value { dims: 0 } }') + "}"
    ),
    "priority levels": lambda n: (
        HEAD
        + TENSORS
        + "dynamic_batching { priority_levels: 1 default_priority_level: 1\n"
        + lines(n, "priority_queue_policy { key: 1# value { } }")
        + "}"
    ),
    "versions of a policy": lambda n: (
        HEAD + TENSORS + f"version_policy {{ specific {{ versions: [ {', '.join(map(str, range(n)))} ] }} }}"
    ),
    "settings of versions": lambda n: (
        HEAD + TENSORS + parameter("version_settings", {str(number): {"max_batch_size": -1} for number in range(1, n)})
    ),
    "names of classes": lambda n: (
        HEAD + TENSORS + parameter("class_names", {f"o{number}": ["a"] for number in range(n)})
    ),
    "names of versions": lambda n: HEAD + TENSORS + parameter("aliases", {f"a{number}": 1 for number in range(n)}),
    "steps of an ensemble, the last one first": lambda n: ensemble(
        n, lambda index: mapped("x" if index == n - 1 else f"t{index + 1}", "y" if index == 0 else f"t{index}")
    ),
    "steps of an ensemble that wait for each other": lambda n: ensemble(
        n, lambda index: mapped(f"t{(index + 1) % n}", f"t{index}")
    ),
    "steps of an ensemble that write the same": lambda n: ensemble(n, lambda index: mapped("x", "y")),
    "sequence controls": lambda n: (
        HEAD + TENSORS + "sequence_batching {" + lines(n, 'control_input { name: "c" control { kind: 1 } }') + "}"
    ),
    "agents": lambda n: HEAD + TENSORS + "model_repository_agents {" + lines(n, 'agents { name: "a#" }') + "}",
    "comments": lambda n: "# a\n" * n + HEAD + TENSORS,
}


@pytest.mark.django_db
@pytest.mark.parametrize("case", TEXTS)
def test_a_preview_of_a_text(case: str, relu: Version) -> None:
    known(relu)
    assert grows_evenly(lambda n: lambda: config_preview(model_name="relu", document=Document.read(TEXTS[case](n))), 60)


@pytest.mark.django_db
@pytest.mark.parametrize("case", ["inputs that the file has not", "instance groups", "settings of versions"])
def test_applying_a_text(case: str, relu: Version, actor: Actor) -> None:
    known(relu)
    model = relu.model
    assert grows_evenly(
        lambda n: lambda: config_apply(model=model, document=Document.read(TEXTS[case](n)), actor=actor), 60
    )


def known(version: Version) -> None:
    file = Signature((TensorSignature("x", "FP32", (-1, 4)),), (TensorSignature("y", "FP32", (-1, 4)),))
    version.details = {**version.details, "backend": "onnxruntime", "signature": file.to_json()}
    version.save()


FORMS: dict[str, tuple[Callable[[int], str], Callable[[int], dict[str, Any]]]] = {
    "inputs are added": (
        lambda n: HEAD,
        lambda n: {"inputs": [{"name": f"e{number}", "data_type": "FP32", "dims": "1"} for number in range(n)]},
    ),
    "inputs go": (lambda n: HEAD + lines(n, 'input { name: "e#" dims: 1 }'), lambda n: {"inputs": []}),
    "inputs on one line go": (lambda n: HEAD + 'input { name: "e" dims: 1 } ' * n, lambda n: {"inputs": []}),
    "inputs change their order": (
        lambda n: HEAD + lines(n, 'input { name: "e#" dims: 1 }'),
        lambda n: {"inputs": [{"name": f"e{number}", "dims": "2"} for number in reversed(range(n))]},
    ),
    "parameters change": (
        lambda n: HEAD + lines(n, 'parameters { key: "p#" value { string_value: "1" } }'),
        lambda n: {"parameters": [{"key": f"p{number}", "value": "2"} for number in reversed(range(n))]},
    ),
    "parameters go": (
        lambda n: HEAD + lines(n, 'parameters { key: "p#" value { string_value: "1" } }'),
        lambda n: {"parameters": []},
    ),
    "samples for warm-up are added": (
        lambda n: HEAD + TENSORS,
        lambda n: {"warmups": [{"name": f"w{number}", "content": "zeros"} for number in range(n)]},
    ),
    "samples for warm-up of as many inputs": (
        lambda n: HEAD + lines(n, 'input { name: "e#" data_type: TYPE_FP32 dims: 1 }'),
        lambda n: {"warmups": [{"name": f"w{number}", "content": "zeros"} for number in range(n)]},
    ),
    "policies of priority levels": (
        lambda n: HEAD + TENSORS,
        lambda n: {"batching": True, "queue_policies": [{"level": number + 1} for number in range(n)]},
    ),
}


@pytest.mark.django_db
@pytest.mark.parametrize("case", FORMS)
def test_a_preview_of_a_form(case: str, relu: Version) -> None:
    base, fields = FORMS[case]
    n = 130 if "as many" in case else 50
    assert grows_evenly(
        lambda n: lambda: config_preview(model_name="relu", base=Document.read(base(n)), fields=fields(n)), n
    )


def many(n: int, datatype: str = "FP32") -> tuple[TensorSignature, ...]:
    return tuple(TensorSignature(f"t{number}", datatype, (1,)) for number in range(n))


def rows(n: int, of: int = 0) -> list[dict[str, Any]]:
    return [{"name": f"t{number + of}", "datatype": "FP32", "shape": [1], "data": [1.0]} for number in range(n)]


def compared(n: int) -> Callable[[], Any]:
    expected = golden.read_expected({"outputs": rows(n)})
    answered = {tensor.name: tensor for tensor in golden.read_expected({"outputs": rows(n, of=n)})}
    return lambda: golden.compare(expected, answered, golden.DEFAULT_TOLERANCE)


def against(n: int, text: str, signature: Signature) -> Callable[[], Any]:
    return lambda: misfits(model_config.parse(text), ModelFile("onnxruntime", signature=signature))


def form(n: int, row: str) -> Callable[[], Any]:
    def work() -> None:
        typed = Form.typed(QueryDict("kind=canary&candidate=1&" + "&".join([row] * n)))
        typed.plan()

    return work


def folders(n: int) -> list[dict[str, Any]]:
    return [{"path": f"{number}/" + "a/" * 20 + "f", "size": 1} for number in range(n)]


def reversed_lines(text: str) -> str:
    return "\n".join(reversed(text.split("\n")))


OTHERS: dict[str, tuple[int, Callable[[int], Callable[[], Any]]]] = {
    "a file of many inputs": (
        200,
        lambda n: against(n, lines(n, 'input { name: "e#" }'), Signature(many(n), many(1))),
    ),
    "a file that says no datatypes": (
        200,
        lambda n: against(n, lines(n, 'input { name: "t#" dims: 1 }'), Signature(many(n, ""), many(1))),
    ),
    "a file whose inputs are named in another order": (
        400,
        lambda n: against(
            n, reversed_lines(lines(n, 'input { name: "t#" dims: 1 }')), Signature(many(n), many(1), ordered=True)
        ),
    ),
    "the difference of two texts, one in the other order": (
        400,
        lambda n: lambda: unified(lines(n, "#"), reversed_lines(lines(n, "#"))),
    ),
    "the difference of two texts of few lines": (
        400,
        lambda n: lambda: unified("a\nb\nc\n" * n, "c\nb\nd\na\n" * n),
    ),
    "comments that go, of a text with quotes": (400, lambda n: lambda: dropped_comments('"' + '\\"' * n, "")),
    "the stamp of a release": (
        300,
        lambda n: lambda: Document.read(lines(n, 'parameters { key: "a#" value { string_value: "slipway.release" } }')),
    ),
    "two changes of a text": (
        100,
        lambda n: (
            lambda: Document.read(lines(n, 'input { name: "f#" }')).merged(
                Document.read(lines(n, 'input { name: "e#" }')),
                Document.read("max_batch_size: 2\n" + lines(n, 'input { name: "e#" }')),
            )
        ),
    ),
    "inputs of an example": (400, lambda n: lambda: golden.read_request({"inputs": rows(n)})),
    "an answer with other outputs": (400, compared),
    "tensors of two versions": (
        400,
        lambda n: (
            lambda: tensor_changes(
                {"inputs": rows(n), "outputs": rows(1)},  # type: ignore[typeddict-item]  # with their data
                {"inputs": rows(n, of=n), "outputs": rows(1)},  # type: ignore[typeddict-item]
            )
        ),
    ),
    "steps of a rollout": (200, lambda n: form(n, "step_weight=x&step_bake=x")),
    "guardrails of a rollout": (200, lambda n: form(n, "guardrail_metric=x&guardrail_limit=x")),
    "files of an upload": (300, lambda n: lambda: _checked_files(folders(n))),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_else_a_person_sends(case: str) -> None:
    n, work = OTHERS[case]
    assert grows_evenly(work, n)


def test_a_configuration_has_so_many_values_and_no_more() -> None:
    fits = lines(model_config.MAX_VALUES // 4 - 1, 'input { name: "e" data_type: TYPE_FP32 dims: 1 }')
    assert len(model_config.parse(fits).input) == model_config.MAX_VALUES // 4 - 1
    with pytest.raises(InvalidConfig, match=f"expected at most {model_config.MAX_VALUES}"):
        model_config.parse(fits + lines(9, 'output { name: "e" dims: [ 1, 1, 1, 1, 1, 1 ] }'))
    with pytest.raises(InvalidConfig, match="values; expected at most"):
        model_config.parse_json(json.dumps({"input": [{"name": "e", "dims": [1] * 9}] * 6000}))


def test_settings_of_versions_count_with_what_they_are_laid_over() -> None:
    head = lines(1000, 'input { name: "e#" data_type: TYPE_FP32 dims: 1 }')
    text = head + parameter("version_settings", {str(number): {"max_batch_size": 1} for number in range(1, 40)})
    found = validate(model_config.parse(text), complete=False)
    assert any("expected settings of at most 16 versions" in problem.message for problem in found), found[0]


@pytest.mark.django_db(transaction=True)
def test_a_preview_ends_when_its_client_has_gone(
    relu: Version, as_person: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view runs in its thread: its next step is not taken once the connection is closed."""
    cookie = as_person().cookies[settings.SESSION_COOKIE_NAME].value
    began, closed, steps = threading.Event(), threading.Event(), []
    validate_as_ever = validation.validate

    def long(*given: Any, **more: Any) -> Any:
        began.set()
        assert closed.wait(PATIENCE_S)
        return validate_as_ever(*given, **more)

    monkeypatch.setattr(validation, "validate", long)
    monkeypatch.setattr(services, "served_misfits", lambda *given: steps.append("files"))

    async def ask_and_go() -> None:
        client = await asking("/api/v1/models/relu/config/preview", {"text": HEAD + TENSORS}, cookie)
        assert await asyncio.to_thread(began.wait, PATIENCE_S)
        await go(client)
        closed.set()
        await client.wait(PATIENCE_S)

    asyncio.run(ask_and_go())
    assert steps == []
