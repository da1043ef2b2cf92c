"""config.pbtxt's parameters and optimization for ONNX Runtime reach the session, and wrong ones are named."""

import os

import onnxruntime as ort
import pytest

from serving.backends.base.parameters import available_cores
from serving.backends.onnxruntime.options import check_options, providers_for, run_options, session_options
from serving.core.devices import Device
from serving.core.errors import Code, ServingError
from tests.serving.backends.driving import config, instance_of, loaded, spec_of
from tests.support import model_factory

GPU = Device("gpu", 0)


def with_parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} ' for key, value in values.items()
    )


def test_threads_and_modes_are_those_of_the_configuration():
    options = session_options(
        config(
            with_parameters(
                intra_op_thread_count="3",
                inter_op_thread_count="2",
                execution_mode="1",
                enable_mem_arena="0",
                enable_mem_pattern="false",
            )
        )
    )
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 2
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern


def test_instances_together_use_no_more_threads_than_there_are_cores():
    cores = available_cores()
    assert 1 <= cores <= os.cpu_count()
    assert session_options(config("")).intra_op_num_threads == cores
    many = config(f"instance_group {{ count: {cores * 4} kind: KIND_CPU }}")
    assert session_options(many).intra_op_num_threads == 1
    two = config("instance_group { count: 2 }")
    assert session_options(two).intra_op_num_threads == max(1, cores // 2)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (-1, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
        (0, ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        (1, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
        (2, ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
    ],
)
def test_graph_levels_mean_the_same_as_in_triton(level, expected):
    options = session_options(config(f"optimization {{ graph {{ level: {level} }} }}"))
    assert options.graph_optimization_level == expected


def test_session_entries_pass_and_override_ours():
    options = session_options(
        config(
            with_parameters(
                **{"session.intra_op.allow_spinning": "1", "session.use_device_allocator_for_initializers": "1"}
            )
        )
    )
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"


@pytest.mark.parametrize(
    "key",
    ["session.model_external_initializers_file_folder_path", "session.optimized_model_external_initializers_file_name"],
)
def test_a_session_entry_that_names_a_file_is_refused(key):
    with pytest.raises(ServingError, match="names a file on the server"):
        session_options(config(with_parameters(**{key: "/etc"})))


def test_arena_shrinkage_reaches_the_run():
    options = run_options(config(with_parameters(**{"memory.enable_memory_arena_shrinkage": "cpu:0;gpu:1"})))
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0;gpu:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (with_parameters(intra_op_thread_count="-1"), "'intra_op_thread_count' must be an integer from 0 to 1024"),
        (with_parameters(inter_op_thread_count="2.5"), "'inter_op_thread_count' must be an integer, but is '2.5'"),
        (with_parameters(execution_mode="2"), "'execution_mode' must be one of 0, 1, but is '2'"),
        (with_parameters(enable_mem_arena="yes"), "'enable_mem_arena' must be 'true' or 'false', but is 'yes'"),
        (with_parameters(cudnn_conv_algo_search="9"), "'cudnn_conv_algo_search' must be one of 0, 1, 2"),
        (with_parameters(gpu_mem_limit="4GB"), "'gpu_mem_limit' must be an integer, but is '4GB'"),
        (with_parameters(arena_extend_strategy="3"), "'arena_extend_strategy' must be one of 0, 1"),
        (with_parameters(do_copy_in_default_stream="x"), "'do_copy_in_default_stream' must be 'true' or 'false'"),
        (with_parameters(**{"memory.enable_memory_arena_shrinkage": "all"}), "must read like 'cpu:0;gpu:0'"),
        ("optimization { graph { level: 7 } }", "level must be one of -1, 0, 1, 2, but is 7"),
        (
            'optimization { execution_accelerators { gpu_execution_accelerator { name: "xyz" } } }',
            "unknown gpu_execution_accelerator 'xyz'; expected tensorrt or cuda",
        ),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "tensorrt" } } }',
            "unknown cpu_execution_accelerator 'tensorrt'; expected openvino",
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
            "parameters { key: 'precision_mode' value: 'FP12' } } } }",
            "tensorrt parameter 'precision_mode' must be one of FP32, FP16, BF16, INT8, but is 'FP12'",
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
            "parameters { key: 'trt_engine_cache_path' value: '../../elsewhere' } } } }",
            "must be a path inside the model's folder",
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'cuda' "
            "parameters { key: 'user_compute_stream' value: '4096' } } } }",
            "cuda parameter 'user_compute_stream' is not allowed",
        ),
        ("model_operations { op_library_filename: 'ops.so' }", "custom operator libraries"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(text, expected, tmp_path):
    folder = model_factory.onnx_add_sub(tmp_path, extra=text)
    with pytest.raises(ServingError) as refused, loaded(folder):
        pass
    assert expected in refused.value.message


def test_cuda_options_come_from_parameters_and_from_the_accelerator(tmp_path):
    text = with_parameters(cudnn_conv_algo_search="1", gpu_mem_limit="1024", arena_extend_strategy="1") + (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'cuda' "
        "parameters { key: 'use_ep_level_unified_stream' value: '1' } } } }"
    )
    spec = spec_of(model_factory.onnx_add_sub(tmp_path, extra=text))
    check_options(spec)
    (name, options), (fallback, _) = providers_for(spec, Device("gpu", 1))
    assert (name, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options == {
        "device_id": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
        "gpu_mem_limit": "1024",
        "use_ep_level_unified_stream": "1",
    }


def test_tensorrt_comes_before_cuda_with_its_parameters_renamed(tmp_path):
    text = (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
        "parameters { key: 'precision_mode' value: 'FP16' } "
        "parameters { key: 'max_workspace_size_bytes' value: '1048576' } "
        "parameters { key: 'trt_engine_cache_enable' value: 'true' } "
        "parameters { key: 'trt_engine_cache_path' value: 'engines' } } } }"
    )
    spec = spec_of(model_factory.onnx_add_sub(tmp_path, extra=text))
    check_options(spec)
    providers = providers_for(spec, GPU)
    assert [name for name, _ in providers] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    assert providers[0][1] == {
        "device_id": "0",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1048576",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(spec.version_dir.parent / "engines"),
    }


def test_openvino_is_missing_and_the_error_says_so(tmp_path):
    text = "optimization { execution_accelerators { cpu_execution_accelerator { name: 'openvino' } } }"
    folder = model_factory.onnx_add_sub(tmp_path, extra=text)
    missing = pytest.raises(ServingError, match="'openvino' is missing: this onnxruntime package")
    with missing as refused, instance_of(folder):
        pass
    assert refused.value.code is Code.UNAVAILABLE


def test_a_gpu_instance_without_a_gpu_is_refused_and_never_runs_on_the_cpu(tmp_path, monkeypatch):
    from serving.backends.onnxruntime import options as onnxruntime_options

    monkeypatch.setattr(onnxruntime_options, "gpu_count", lambda: 0)
    onnxruntime_options.why_no_cuda.cache_clear()
    folder = model_factory.onnx_add_sub(tmp_path)
    try:
        missing = pytest.raises(ServingError, match="cannot run on gpu:0: this machine has no CUDA device")
        with missing as refused, instance_of(folder, device=GPU):
            pass
    finally:
        onnxruntime_options.why_no_cuda.cache_clear()
    assert refused.value.code is Code.UNAVAILABLE


def test_an_unknown_parameter_is_warned_of(tmp_path, caplog):
    folder = model_factory.onnx_add_sub(tmp_path, extra=with_parameters(intra_op_threads="2"))
    with loaded(folder):
        pass
    assert "'intra_op_threads' means nothing to this backend" in caplog.text
