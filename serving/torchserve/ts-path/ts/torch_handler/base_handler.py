"""BaseHandler: loads the model that an archive names, and passes a batch through preprocess, inference and postprocess.

Serialized files: weights with a model file (eager mode), TorchScript, torch.export and AOTInductor (.pt2), AOTInductor's
library (.so), ONNX (.onnx). Source: pytorch/serve, docs/custom_service.md, and the behaviour of its BaseHandler.
"""

import importlib
import logging
import os
import time
import warnings
import zipfile
from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..context import Context
from ..handler_utils.timer import timed
from ..utils.util import check_valid_pt2_backend, list_classes_from_module, load_label_mapping

logger = logging.getLogger(__name__)

ONNX_SUFFIX = ".onnx"
_PROFILES = "/tmp/pytorch_profiler"  # the same folder as in TorchServe
_SERIALIZED = (".pt", ".pth", ".pt2", ".so", ONNX_SUFFIX)


def use_tensor_cores() -> None:
    """Allow TF32 in products of FP32 matrices on GPUs that have it (Ampere and later), as TorchServe does."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0):
        torch.set_float32_matmul_precision("high")


use_tensor_cores()


def setup_ort_session(model_pt_path: str, map_location: str) -> Any:
    """Return an ONNX Runtime session for a file, on the device `map_location`."""
    import onnxruntime

    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"] if map_location == "cuda" else ["CPUExecutionProvider"]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(model_pt_path, options, providers=wanted)


def attributes() -> Any:
    """Return captum.attr. If captum is missing, raise ImportError with the remedy."""
    try:
        from captum import attr
    except ModuleNotFoundError as error:
        if error.name != "captum":
            raise
        raise ImportError("explanations of this handler need captum: run pip install captum") from None
    return attr


class BaseHandler(ABC):  # noqa: B024
    """The base class of handlers. `model`, `device`, `mapping` and `manifest` are set by `initialize`."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Context | None = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: dict[str, Any] = {}

    # -- loading -------------------------------------------------------------------------------------------------------
    def initialize(self, context: Context) -> None:
        """Load the archive's model onto the worker's device."""
        properties = context.system_properties
        on_gpu = torch.cuda.is_available() and properties.get("gpu_id") is not None
        self.map_location = "cuda" if on_gpu else "cpu"
        self.device = torch.device(f"cuda:{properties['gpu_id']}" if on_gpu else "cpu")
        self.manifest = context.manifest
        self.model_yaml_config = dict(context.model_yaml_config or {})
        model_dir: str = properties["model_dir"]
        named = self.manifest["model"]
        self.model_pt_path = os.path.join(model_dir, named["serializedFile"]) if named.get("serializedFile") else None
        if self.model_pt_path is not None and not os.path.exists(self.model_pt_path):
            raise ValueError(f"the archive has no {named['serializedFile']}, which its manifest names")
        self.model = self._load_model(model_dir, named.get("modelFile") or "")
        self._compile()
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))
        self.initialized = True

    def _load_model(self, model_dir: str, model_file: str) -> Any:
        path = self.model_pt_path
        if model_file:
            model = self._load_pickled_model(model_dir, model_file, path)  # a method that handlers override
            model.to(self.device)
            model.eval()
            return model
        if path is None or not path.endswith(_SERIALIZED):
            raise RuntimeError(
                "the archive has neither a model file nor a serialized file that ends in one of "
                + ", ".join(_SERIALIZED)
            )
        if path.endswith(ONNX_SUFFIX):
            return setup_ort_session(path, self.map_location or "cpu")
        if path.endswith(".so"):
            return self._load_torch_export_aot_compile(path)
        if path.endswith(".pt2"):
            return self._load_exported_model(path)
        model = self._load_torchscript_model(path)
        model.eval()
        return model

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # archives contain TorchScript
                return torch.jit.load(model_pt_path, map_location=self.device)
        except RuntimeError as error:
            if "constants.pkl" not in str(error):
                raise
            name = os.path.basename(model_pt_path)
            raise RuntimeError(
                f"{name} holds weights and no TorchScript: name the file with the model's class (--model-file), or save the "
                "model with torch.jit"
            ) from None

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """Make the model from the only class in the model file, and load its weights. Only tensors are read from the file."""
        if not os.path.isfile(os.path.join(model_dir, model_file)):
            raise RuntimeError(f"the archive has no {model_file}, which its manifest names as the model's file")
        module = importlib.import_module(model_file.removesuffix(".py").replace("/", "."))
        classes = [one for one in list_classes_from_module(module) if issubclass(one, torch.nn.Module)]
        if len(classes) != 1:
            found = ", ".join(one.__name__ for one in classes) or "none"
            raise ValueError(f"{model_file} must define one class of a torch.nn.Module, but there is {found}")
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(self._weights(model_pt_path))
        return model

    def _weights(self, path: str) -> Any:
        try:
            return torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:
            if "weights_only" not in str(error) and "Weights only" not in str(error):
                raise
            raise RuntimeError(
                f"{os.path.basename(path)} holds more than tensors, which is not read: save the weights with "
                "torch.save(model.state_dict(), ...)"
            ) from None

    def _load_exported_model(self, path: str) -> Any:
        """Return the model in a .pt2 file: an exported program, or a package that AOTInductor has compiled."""
        with zipfile.ZipFile(path) as packed:
            compiled = any("/data/aotinductor/" in f"/{name}" and name.endswith(".so") for name in packed.namelist())
        if compiled:
            from torch._inductor import aoti_load_package

            return aoti_load_package(path)
        return torch.export.load(path).module().to(self.device)

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        return torch._export.aot_load(model_so_path, self.map_location)

    def _compile(self) -> None:
        """Compile the model as the section `pt2` of model-config.yaml says."""
        options = _compile_options(self.model_yaml_config.get("pt2"))
        if options is None or not isinstance(self.model, torch.nn.Module):
            return
        if not check_valid_pt2_backend(options.setdefault("backend", "inductor")):
            return
        try:
            self.model = torch.compile(self.model, **options)
        except Exception as error:
            logger.warning("the model is not compiled with %s: %s", options["backend"], error)
        else:
            logger.info("the model is compiled with %s", ", ".join(f"{key} {value}" for key, value in options.items()))

    # -- a batch -------------------------------------------------------------------------------------------------------
    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the inputs of the model, by default the data itself as a tensor."""
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs for its inputs."""
        if callable(self.model):
            with torch.inference_mode():
                return self.model(data.to(self.device), *args, **kwargs)
        return self._run_session([data, *args])

    def _run_session(self, values: Sequence[Any]) -> Any:
        """Run the session of an ONNX model. Return the output, or a list of several outputs."""
        names = [one.name for one in self.model.get_inputs()]
        arrays = [value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value for value in values]
        found = self.model.run(None, dict(zip(names, arrays, strict=False)))
        tensors = [torch.as_tensor(one) for one in found]
        return tensors[0] if len(tensors) == 1 else tensors

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Return one answer for each request, by default the model's outputs as lists."""
        return data.tolist()  # type: ignore[no-any-return]

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Return the answers to a batch, and measure how long it took."""
        began = time.perf_counter()
        self.context = context
        metrics = context.metrics
        if os.environ.get("ENABLE_TORCH_PROFILER", "false").lower() == "true":
            answers = self._infer_with_profiler(data)
        elif self._is_describe():
            answers = [self.describe_handle()]
        else:
            inputs = self.preprocess(data)
            answers = (
                self.explain_handle(inputs, data) if self._is_explain() else self.postprocess(self.inference(inputs))
            )
        if metrics is not None:
            metrics.add_time("HandlerTime", round((time.perf_counter() - began) * 1000, 2), None, "ms")
        return answers

    def _infer_with_profiler(self, data: list[dict[str, Any]]) -> list[Any]:
        """Return the answers to a batch, and write its profile to the log and to a file for Chrome's trace viewer."""
        from torch.profiler import ProfilerActivity, profile, record_function

        if not self.profiler_args:
            activities = [ProfilerActivity.CPU]
            if self.map_location == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self.profiler_args = {"activities": activities, "record_shapes": True}
        if "on_trace_ready" not in self.profiler_args:
            name = (self.manifest or {}).get("model", {}).get("modelName", "model")
            folder = Path(_PROFILES) / name
            folder.mkdir(parents=True, exist_ok=True)
            self.profiler_args["on_trace_ready"] = torch.profiler.tensorboard_trace_handler(str(folder))
            logger.info("profiles go to %s", folder)
        with profile(**self.profiler_args) as profiled:
            with record_function("preprocess"):
                inputs = self.preprocess(data)
            if self._is_explain():
                with record_function("explain"):
                    answers = self.explain_handle(inputs, data)
            else:
                with record_function("inference"):
                    outputs = self.inference(inputs)
                with record_function("postprocess"):
                    answers = self.postprocess(outputs)
        logger.info(profiled.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return answers

    # -- explanations and descriptions ---------------------------------------------------------------------------------
    def explain_handle(self, data_preprocess: Any, raw_data: list[dict[str, Any]]) -> list[Any]:
        """Return the result of the handler's `get_insights(tensor, raw data, target)` for the batch's first request."""
        insights = getattr(self, "get_insights", None)
        if insights is None:
            raise NotImplementedError(
                "this handler has no get_insights(tensor_data, raw_data, target), which explains answers"
            )
        row = raw_data[0]
        inputs = row.get("data")
        if inputs is None:
            inputs = row.get("body")
        return insights(data_preprocess, inputs, row.get("target") or 0)  # type: ignore[no-any-return]

    def describe_handle(self) -> Any:
        """Return the handler's own metadata, by default none, for describe requests with `customized=true`."""
        return None

    def _is_explain(self) -> bool:
        return bool(self._header("explain") == "True")

    def _is_describe(self) -> bool:
        return bool(self._header("describe") == "True")

    def _header(self, name: str) -> Any:
        return None if self.context is None else self.context.get_request_header(0, name)

    def get_device(self) -> Any:
        return self.device


def _compile_options(said: Any) -> dict[str, Any] | None:
    """Return the arguments for torch.compile, or None if the model should not be compiled.

    said: the section `pt2`: {compile: {enable: true, backend: ...}} or, in older forms, only the arguments or the name of the
    backend.
    """
    if isinstance(said, str):
        return {"backend": said}
    if not said or "export" in said:
        return None
    if "compile" not in said:
        return dict(said)
    given = dict(said["compile"] or {})
    return given if str(given.pop("enable", False)).lower() in ("true", "1") else None
