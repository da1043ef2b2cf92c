"""The sequence batcher: order, slots, controls, implicit state, backlog, idle sequences, cancellation."""

import asyncio
import threading

import numpy as np
import onnx.helper
import pytest

from repository.config.model_config import parse
from serving.core.datatypes import serialize_bytes
from serving.core.errors import Code, ServingError
from serving.scheduling.sequence_controls import SequenceControls
from tests.serving.gate import until
from tests.serving.in_process import core, index, infer
from tests.support import model_factory

pytestmark = pytest.mark.asyncio

CONTROLS = """control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } }
    control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }"""
STATE = """state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [1] %s }"""


def accumulator(repository, strategy="direct { }", rows=4, state=STATE % "", settings="", outputs="", instances=1):
    """TOTAL = IN + (START ? 0 : SUM_IN); the controls are echoed, so that a test sees what the model saw."""
    node = onnx.helper.make_node
    column = ["batch", 1]
    nodes = [
        node("Sub", ["one", "START"], ["keep"]),
        node("Mul", ["SUM_IN", "keep"], ["kept"]),
        node("Add", ["IN", "kept"], ["TOTAL"]),
        node("Identity", ["TOTAL"], ["SUM_OUT"]),
        node("Concat", ["START", "END", "READY"], ["CONTROLS"], axis=1),
        node("Identity", ["CORRID"], ["ID"]),
    ]
    inputs = [(name, "FP32", column) for name in ("IN", "START", "END", "READY", "SUM_IN")] + [
        ("CORRID", "INT64", column)
    ]
    made = [
        ("TOTAL", "FP32", column),
        ("SUM_OUT", "FP32", column),
        ("CONTROLS", "FP32", ["batch", 3]),
        ("ID", "INT64", column),
    ]
    content = model_factory.onnx_bytes(nodes, inputs, made, {"one": np.ones((1, 1), np.float32)})
    model_factory.write_onnx(repository, "sum", content)
    (repository / "sum" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime" max_batch_size: {rows}
        input [{{ name: "IN" data_type: TYPE_FP32 dims: [1] }}]
        output [{{ name: "TOTAL" data_type: TYPE_FP32 dims: [1] }}, {{ name: "CONTROLS" data_type: TYPE_FP32 dims: [3] }},
                {{ name: "ID" data_type: TYPE_INT64 dims: [1] }} {outputs}]
        instance_group {{ kind: KIND_CPU count: {instances} }}
        sequence_batching {{ {strategy} {settings} {CONTROLS} {state} }}"""
    )


async def step(server, sequence, value, flags="", **fields):
    inputs = {"IN": np.array([[value]], np.float32)}
    return await infer(
        server, "sum", inputs, sequence_id=sequence, sequence_start="s" in flags, sequence_end="e" in flags, **fields
    )


async def total(server, sequence, value, flags="", **fields):
    return float((await step(server, sequence, value, flags, **fields))["TOTAL"][0, 0])


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_each_sequence_has_a_state_of_its_own(tmp_path, strategy):
    accumulator(tmp_path, strategy)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await asyncio.gather(*(total(server, i, i, "s") for i in (1, 2, 3))) == [1, 2, 3]
        assert await asyncio.gather(*(total(server, i, 10) for i in (1, 2, 3))) == [11, 12, 13]
        assert await asyncio.gather(*(total(server, i, 100, "e") for i in (1, 2, 3))) == [111, 112, 113]


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_requests_of_one_sequence_run_in_order_however_fast_they_come(tmp_path, strategy):
    accumulator(tmp_path, strategy, instances=2)
    async with core(tmp_path, load_model=("sum",)) as server:
        calls = [total(server, 7, 1, "s" if i == 0 else "e" if i == 19 else "") for i in range(20)]
        assert await asyncio.gather(*calls) == list(range(1, 21))


async def test_the_model_sees_start_end_ready_and_the_correlation_id(tmp_path):
    accumulator(tmp_path)
    async with core(tmp_path, load_model=("sum",)) as server:
        first, middle, last = [await step(server, 42, 1, flags) for flags in ("s", "", "e")]
        assert [answer["CONTROLS"].tolist() for answer in (first, middle, last)] == [
            [[1, 0, 1]],
            [[0, 0, 1]],
            [[0, 1, 1]],
        ]
        assert first["ID"].tolist() == [[42]]


async def test_implicit_state_is_given_back_only_when_it_is_an_output_that_was_asked_for(tmp_path):
    accumulator(tmp_path, outputs=', { name: "SUM_OUT" data_type: TYPE_FP32 dims: [1] }')
    async with core(tmp_path, load_model=("sum",)) as server:
        assert "SUM_OUT" in await step(server, 1, 1, "s")
        assert set(await step(server, 1, 1, "", requested=("TOTAL",))) == {"TOTAL"}
        assert await total(server, 1, 1, "e") == 3
    accumulator(tmp_path)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert "SUM_OUT" not in await step(server, 1, 1, "s")


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        ('initial_state { name: "i" data_type: TYPE_FP32 dims: [1] zero_data: true }', 5),
        ('initial_state { name: "i" data_type: TYPE_FP32 dims: [1] data_file: "seven" }', 12),
    ],
)
async def test_the_state_of_a_new_sequence_comes_from_the_configuration(tmp_path, initial, expected):
    accumulator(tmp_path, state=STATE % initial)
    (tmp_path / "sum" / "initial_state").mkdir()
    (tmp_path / "sum" / "initial_state" / "seven").write_bytes(np.float32(7).tobytes())
    config = (tmp_path / "sum" / "config.pbtxt").read_text()
    start = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }'
    (tmp_path / "sum" / "config.pbtxt").write_text(config.replace(start, start.replace("[0, 1]", "[0, 0]")))
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await total(server, 1, 5, "s") == expected


def remembers(repository, initial):
    """OUT = the state of three texts as it was; IN becomes all of them."""
    node = onnx.helper.make_node
    content = model_factory.onnx_bytes(
        [node("Identity", ["OLD"], ["OUT"]), node("Concat", ["IN", "IN", "IN"], ["NEW"], axis=0)],
        [("IN", "BYTES", [1]), ("OLD", "BYTES", [3])],
        [("OUT", "BYTES", [3]), ("NEW", "BYTES", [3])],
    )
    folder = model_factory.write_onnx(repository, "remembers", content).parent.parent
    state = 'state { input_name: "OLD" output_name: "NEW" data_type: TYPE_STRING dims: [3] %s }'
    initial = f'initial_state {{ name: "first" data_type: TYPE_STRING dims: [3] {initial} }}' if initial else ""
    model_factory.write_config(
        folder,
        model_factory.tensors_text("input", [("IN", "BYTES", [1])])
        + model_factory.tensors_text("output", [("OUT", "BYTES", [3])])
        + f"sequence_batching {{ {state % initial} }}",
    )
    (folder / "initial_state").mkdir()
    return folder / "initial_state" / "texts"


@pytest.mark.parametrize(
    ("initial", "texts", "expected"),
    [
        ("", [], [b"", b"", b""]),
        ("zero_data: true", [], [b"", b"", b""]),
        ('data_file: "texts"', [b"one", b"", b"three"], [b"one", b"", b"three"]),
        ('data_file: "texts"', [b"one", b"two"], [b"one", b"two", b""]),
        ('data_file: "texts"', [], [b"", b"", b""]),
    ],
)
async def test_a_state_of_strings_begins_with_those_that_are_given_and_empty_ones(tmp_path, initial, texts, expected):
    """Triton loads a model whose file has fewer than its dims say; its requests fail there."""
    file = remembers(tmp_path, initial)
    file.write_bytes(serialize_bytes(np.array(texts, object)))
    async with core(tmp_path, load_model=("remembers",)) as server:
        found = []
        for word, fields in ((b"x", {"sequence_start": True}), (b"y", {"sequence_end": True})):
            inputs = {"IN": np.array([word], object)}
            found.append((await infer(server, "remembers", inputs, sequence_id=1, **fields))["OUT"].tolist())
        assert found == [expected, [b"x"] * 3]


@pytest.mark.parametrize(
    ("content", "expected", "warned"),
    [
        (b"\x64\0\0\0", [b"", b"", b""], True),  # the file of Triton's own tests, for every datatype
        (serialize_bytes(np.array([b"abc", b"de"], object))[:-1], [b"", b"", b""], True),
        (b"hello", [b"", b"", b""], True),
        (b"\0\0", [b"", b"", b""], True),
        (serialize_bytes(np.array([b"a", b"b", b"c", b"d"], object)), [b"a", b"b", b"c"], False),
    ],
    ids=["a number", "cut off", "no strings", "too short", "too many"],
)
async def test_a_file_that_is_no_strings_of_the_state_gives_empty_ones(tmp_path, caplog, content, expected, warned):
    """A file of numbers may be too long; Triton loads a model with any file of strings, and begins with empty strings."""
    remembers(tmp_path, 'data_file: "texts"').write_bytes(content)
    async with core(tmp_path, load_model=("remembers",)) as server:
        inputs = {"IN": np.array([b"x"], object)}
        answer = await infer(server, "remembers", inputs, sequence_id=1, sequence_start=True, sequence_end=True)
        assert answer["OUT"].tolist() == expected
    assert ("the file of state 'OLD' is not a list of strings" in caplog.text) is warned


async def test_a_state_that_a_model_leaves_on_its_device_is_kept_on_the_host(tmp_path):
    import torch

    from serving.core.device_tensor import DeviceTensor

    accumulator(tmp_path)
    config = parse((tmp_path / "sum" / "config.pbtxt").read_text())
    controls, state = SequenceControls(config, tmp_path), {}
    outputs = {"SUM_OUT": DeviceTensor.of(torch.full((1, 1), 7.0)), "TOTAL": np.ones((1, 1), np.float32)}
    controls.keep_state(outputs, ("TOTAL",), state)
    assert set(outputs) == {"TOTAL"}
    assert state["SUM_IN"].tolist() == [[7]]


def collector(repository, strategy):
    """TOTAL = the sum of all that the state has collected: it grows by one element with each request."""
    node = onnx.helper.make_node
    nodes = [
        node("Concat", ["COLLECTED", "IN"], ["MORE"], axis=1),
        node("ReduceSum", ["MORE", "axes"], ["TOTAL"], keepdims=1),
    ]
    inputs = [("IN", "FP32", ["batch", 1]), ("COLLECTED", "FP32", ["batch", "n"])]
    outputs = [("TOTAL", "FP32", ["batch", 1]), ("MORE", "FP32", ["batch", "m"])]
    model_factory.write_onnx(
        repository, "sum", model_factory.onnx_bytes(nodes, inputs, outputs, {"axes": np.array([1])})
    )
    (repository / "sum" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime" max_batch_size: 4 instance_group {{ kind: KIND_CPU count: 1 }}
        input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "TOTAL" data_type: TYPE_FP32 dims: 1 }}
        sequence_batching {{ {strategy} state {{ input_name: "COLLECTED" output_name: "MORE" data_type: TYPE_FP32 dims: -1
            initial_state {{ name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true }} }} }}"""
    )


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_sequences_whose_states_have_grown_apart_are_served_side_by_side(tmp_path, strategy):
    collector(tmp_path, strategy)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert [await total(server, 1, 1, flags) for flags in ("s", "", "")] == [1, 2, 3]
        assert await asyncio.gather(total(server, 1, 1), total(server, 2, 5, "s"), total(server, 3, 7, "s")) == [
            4,
            5,
            7,
        ]
        assert await asyncio.gather(total(server, 1, 1, "e"), total(server, 2, 5, "e"), total(server, 3, 7)) == [
            5,
            10,
            14,
        ]
        assert await total(server, 3, 7, "e") == 21


async def test_a_sequence_waits_in_the_backlog_until_a_slot_is_free(tmp_path):
    accumulator(tmp_path, rows=1, settings="max_sequence_idle_microseconds: 60000000")
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await total(server, 1, 1, "s") == 1
        waiting = asyncio.create_task(total(server, 2, 5, "s"))
        following = asyncio.create_task(total(server, 2, 6, "e"))
        await asyncio.sleep(0)
        assert await total(server, 1, 1) == 2
        assert not waiting.done()
        assert await total(server, 1, 1, "e") == 3
        assert await waiting == 5
        assert await following == 11


async def test_an_idle_sequence_loses_its_slot_and_must_start_again(tmp_path):
    accumulator(tmp_path, rows=1, settings="max_sequence_idle_microseconds: 30000")
    async with core(tmp_path, load_model=("sum",)) as server:
        await total(server, 1, 1, "s")
        assert await total(server, 2, 5, "s") == 5, "the slot of the idle sequence was given on"
        with pytest.raises(ServingError, match="must specify the START flag"):
            await total(server, 1, 1)


async def test_a_backlog_request_with_a_timeout_is_rejected_when_no_slot_comes_free(tmp_path):
    accumulator(tmp_path, rows=1, settings="max_sequence_idle_microseconds: 60000000")
    async with core(tmp_path, load_model=("sum",)) as server:
        await total(server, 1, 1, "s")
        with pytest.raises(ServingError, match="timeout of the corresponding sequence") as caught:
            await total(server, 2, 1, "s", timeout_us=10_000)
        assert caught.value.code is Code.UNAVAILABLE
        assert await total(server, 1, 1, "e") == 2


async def test_a_second_start_begins_anew(tmp_path):
    accumulator(tmp_path)
    async with core(tmp_path, load_model=("sum",)) as server:
        await total(server, 1, 1, "s")
        assert await total(server, 1, 5, "s") == 5
        assert await total(server, 1, 1, "e") == 6


async def test_a_batch_has_a_row_for_each_slot_up_to_the_last_that_is_ready(tmp_path):
    accumulator(tmp_path, "direct { minimum_slot_utilization: 1.0 max_queue_delay_microseconds: 20000 }", rows=3)
    async with core(tmp_path, load_model=("sum",)) as server:
        await asyncio.gather(*(total(server, i, i, "s") for i in (1, 2, 3)))
        assert await asyncio.gather(total(server, 1, 1), total(server, 3, 1)) == [2, 4]
        assert await total(server, 3, 1, "e") == 5, "the rows of the slots before it were filled"
        statistics = server.model_statistics("sum").model_stats[0]
        assert statistics.inference_count == 6
        assert {row.batch_size for row in statistics.batch_stats} == {3}


@pytest.mark.parametrize(
    ("sequence", "values", "flags", "message"),
    [
        (0, [1], "s", "must specify a non-zero or non-empty correlation ID"),
        ("", [1], "s", "must specify a non-zero or non-empty correlation ID"),
        (9, [1], "", "sequence 9 to model 'sum' must specify the START flag"),
        (9, [1, 2], "s", "must specify batch-size 1"),
        ("name", [1], "s", "which takes an integer"),
    ],
)
async def test_a_wrong_request_of_a_sequence_is_refused_with_its_fault(tmp_path, sequence, values, flags, message):
    accumulator(tmp_path)
    async with core(tmp_path, load_model=("sum",)) as server:
        inputs = {"IN": np.array(values, np.float32).reshape(-1, 1)}
        with pytest.raises(ServingError, match=message) as caught:
            await infer(server, "sum", inputs, sequence_id=sequence, sequence_start="s" in flags)
        assert caught.value.code is Code.INVALID_ARG


async def test_string_ids_reach_a_string_control(tmp_path):
    accumulator(tmp_path)
    text = (tmp_path / "sum" / "config.pbtxt").read_text()
    assert "CORRID" in text
    corrid = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }'
    node = onnx.helper.make_node
    content = model_factory.onnx_bytes(
        [node("Identity", ["CORRID"], ["ID"]), node("Identity", ["IN"], ["TOTAL"])],
        [("IN", "FP32", ["batch", 1]), ("CORRID", "BYTES", ["batch", 1])],
        [("ID", "BYTES", ["batch", 1]), ("TOTAL", "FP32", ["batch", 1])],
    )
    model_factory.write_onnx(tmp_path, "sum", content)
    (tmp_path / "sum" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime" max_batch_size: 2 sequence_batching {{ oldest {{ }}
        {corrid.replace("TYPE_INT64", "TYPE_STRING")} }}
        input [{{ name: "IN" data_type: TYPE_FP32 dims: [1] }}]
        output [{{ name: "TOTAL" data_type: TYPE_FP32 dims: [1] }}, {{ name: "ID" data_type: TYPE_STRING dims: [1] }}]"""
    )
    async with core(tmp_path, load_model=("sum",)) as server:
        answer = await step(server, "e333c95a", 1, "s")
        assert answer["ID"].tolist() == [[b"e333c95a"]]


async def test_cancelling_a_waiting_request_cancels_the_rest_of_its_sequence(tmp_path):
    accumulator(tmp_path, rows=1, settings="max_sequence_idle_microseconds: 60000000")
    async with core(tmp_path, load_model=("sum",)) as server:
        await total(server, 1, 1, "s")
        scheduler = server._manager.resolve("sum", "").scheduler
        waiting = [asyncio.create_task(total(server, 2, 1, "s")), asyncio.create_task(total(server, 2, 1))]
        await until(lambda: scheduler.pending == 2, "the backlog")
        next(request for request in scheduler._of if request.sequence.start).cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [error.code for error in results] == [Code.CANCELLED, Code.CANCELLED]
        assert scheduler.pending == 0
        assert await total(server, 1, 1, "e") == 2


@pytest.mark.parametrize(
    ("max_batch_size", "strategy"), [(8, "oldest { max_candidate_sequences: 2147483647 }"), (2147483647, "direct { }")]
)
async def test_as_many_slots_as_the_field_can_say_cost_nothing_until_they_are_used(tmp_path, max_batch_size, strategy):
    folder = model_factory.onnx_sequence_sum(tmp_path, "many", max_batch_size=max_batch_size)
    text = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(text.replace("direct { }", strategy))
    async with core(tmp_path, load_model=("many",)) as server:
        for sequence in range(1, 4):
            inputs = {"INPUT": np.full((1, 1), sequence, np.float32)}
            outputs = await infer(server, "many", inputs, sequence_id=sequence, sequence_start=True)
            assert outputs["OUTPUT"].ravel().tolist() == [sequence]


async def test_a_changed_instance_count_keeps_the_sequences_that_run(tmp_path):
    """Each goes on where it is; an instance that is not wanted any more ends with its last sequence."""
    folder = model_factory.onnx_sequence_sum(tmp_path, "sum", max_batch_size=1)
    text = (folder / "config.pbtxt").read_text()

    async def load(server, count):
        (folder / "config.pbtxt").write_text(f"{text} instance_group {{ count: {count} kind: KIND_CPU }}")
        await server.load_model("sum")

    async def add(server, sequence, value, **flags):
        inputs = {"INPUT": np.full((1, 1), value, np.float32)}
        outputs = await infer(server, "sum", inputs, sequence_id=sequence, **flags)
        return outputs["OUTPUT"].ravel().tolist()

    def threads():
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("sum_0_")}

    async with core(tmp_path) as server:
        await load(server, 1)
        assert await add(server, 1, 1, sequence_start=True) == [1]
        await load(server, 2)
        assert await add(server, 1, 1) == [2]
        assert await add(server, 2, 10, sequence_start=True) == [10], "the new instance takes it"
        await load(server, 1)
        assert await add(server, 1, 1) == [3]
        assert await add(server, 2, 10) == [20]
        assert len(threads()) == 2
        assert await add(server, 2, 10, sequence_end=True) == [30]
        await until(lambda: len(threads()) == 1, "the end of an instance without sequences")
        assert await add(server, 1, 1, sequence_end=True) == [4]
        assert await add(server, 3, 7, sequence_start=True) == [7]
        assert server.model_statistics("sum").model_stats[0].inference_count == 8


async def test_unloading_waits_for_no_sequence_of_an_instance_that_is_not_wanted_any_more(tmp_path):
    idle_forever = "max_sequence_idle_microseconds: 3600000000 direct { }"
    folder = model_factory.onnx_sequence_sum(tmp_path, "sum", max_batch_size=1)
    text = (folder / "config.pbtxt").read_text().replace("direct { }", idle_forever)
    async with core(tmp_path) as server:
        for count in (2, 1):
            (folder / "config.pbtxt").write_text(f"{text} instance_group {{ count: {count} kind: KIND_CPU }}")
            await server.load_model("sum")
            for sequence in (1, 2):
                inputs = {"INPUT": np.ones((1, 1), np.float32)}
                await infer(server, "sum", inputs, sequence_id=sequence, sequence_start=count == 2)
        await server.unload_model("sum")
        await until(lambda: index(server)["sum", "1"][0] == "UNAVAILABLE", "unloading")
