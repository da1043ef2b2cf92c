"""Labels of classes, classes of a module, and the exception that sets the status of a handler's answer."""

import inspect
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar
from warnings import warn

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CLEANUP_REGEX = re.compile(r"<.*?>|&(?:[a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")  # tags and entities of HTML


class PT2Backend(StrEnum):
    """The backends of torch.compile that a model-config.yaml may name."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


def check_valid_pt2_backend(backend: str) -> bool:
    """Return whether torch.compile may use this backend. Log a warning if not."""
    if any(backend == one.value for one in PT2Backend):
        return True
    logger.warning("%s is no backend of torch.compile that is known here", backend)
    return False


def list_classes_from_module(module: ModuleType, parent_class: type[Any] | None = None) -> list[type[Any]]:
    """Return the classes that a module itself defines, or only the subclasses of a parent class if it is given."""
    own = [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__]
    return [one for one in own if parent_class is None or issubclass(one, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """Return the labels of classes, by index, in an index_to_name.json, or None if there is no such file."""
    if not os.path.isfile(mapping_file_path):
        logger.warning("there is no %s: answers have no names of classes", os.path.basename(mapping_file_path))
        return None
    with open(mapping_file_path, encoding="utf-8") as file:
        mapping = json.load(file)
    if isinstance(mapping, dict) and isinstance(
        mapping.get("object_type_names"), list
    ):  # the form for object detectors
        mapping = {str(index): name for index, name in enumerate(mapping["object_type_names"])}
    if not isinstance(mapping, dict):
        raise Exception('the labels of classes must be a JSON object: {"class": "label"}')
    return {key: _label(value) for key, value in mapping.items()}


def _label(value: object) -> str:
    name = value[-1] if isinstance(value, list) and value else value  # ["n01440764", "tench"]
    if not isinstance(name, str):
        raise Exception("the labels of classes must be texts, or lists of them")
    return name


def map_class_to_label(
    probs: Sequence[Sequence[Any]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Iterable[Iterable[Any]] | None = None,
) -> list[dict[str, Any]]:
    """Return, for each row, label -> probability. lbl_classes: the class of each value, by default its index in the row."""
    if not isinstance(probs, list):
        raise Exception("probabilities must be a list of lists")
    if mapping is not None and not isinstance(mapping, dict):
        raise Exception("the mapping of classes to labels must be a dict")
    classes = itertools.repeat(range(len(probs[0])), len(probs)) if lbl_classes is None else lbl_classes
    return [
        {
            (str(one) if mapping is None else mapping[str(one)]): value
            for one, value in zip(row_classes, row, strict=False)
        }
        for row_classes, row in zip(classes, probs, strict=False)
    ]


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """Return the content of a YAML file."""
    import yaml

    with open(yaml_file_path, encoding="utf-8") as file:
        return yaml.safe_load(file)  # type: ignore[no-any-return]


def load_compiler_config(config_file_path: str) -> str | None:
    """Return the backend of torch.compile that an older archive's compile.json names, or None if there is no such file."""
    if not os.path.isfile(config_file_path):
        logger.info("there is no %s: the model is not compiled", os.path.basename(config_file_path))
        return None
    with open(config_file_path, encoding="utf-8") as file:
        return next(iter(json.load(file).values()), None)


class PredictionException(Exception):
    """Raised by a handler to answer its client with this message and status."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Warn the callers of a function that it will be removed in a version."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        text = f"{function.__name__} will be removed in version {version}"

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            warn(f"{text}; use {replacement} in its place" if replacement else text, klass, stacklevel=2)
            return function(*arguments, **named)

        return call

    return decorate
