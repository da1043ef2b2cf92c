"""Finds the parts of a model that can run code on its server. No other module decides that.

`runs` finds the code that a server would execute under a configuration, with the settings and the files of each version.
`could_run` checks new files: a later configuration, or stock Triton, may run a file that no backend reads as data.
Both treat every file as code unless it is known to be data. Data are an ONNX model with the weights that it names, and the
label, warm-up and state files that the configuration names. If no version of the model runs code, files whose content proves
that they are data (`data_files`) count as data, too.

Sources: Triton's docs/user_guide/model_configuration.md, the READMEs of its backends, ONNX Runtime's docs on EPContext nodes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.agents import table as agents
from repository.config import model_config, version_settings
from repository.config.backends import KINDS
from repository.core.errors import InvalidConfig
from repository.core.layout import CONFIG_FILE, CONFIGS_FOLDER, OVERLAY_FILE, version_folders
from repository.files import storage
from repository.files.data_files import DataFiles
from repository.files.signatures import SIGNATURE_FILE

# Backend whose model files are data -> the name of its model file. All other backends run their files, or are unknown.
DATA_BACKENDS = {kind.name: kind.filename for kind in KINDS.values() if kind.is_data}
# Execution providers that load compiled engines: from their caches, or from EPContext nodes in the ONNX file.
_ENGINE_ACCELERATORS = ("tensorrt", "openvino")
_ENVIRONMENT = "execution_env_path"
# Parameter of a backend -> a sentence about the code that it runs, and whether the parameter is a switch.
_RUNS = {key: (how, key in kind.parameters) for kind in KINDS.values() for key, how in kind.runs.items()}
_ON = ("true", "1", "on")
_LIBRARY_KEY = re.compile(r"librar|custom_op", re.IGNORECASE)

_CODE_SUFFIXES = (
    suffix for kind in KINDS.values() if not kind.is_data for one in kind.formats for suffix in one.suffixes
)
_CODE_NAME = re.compile(
    r"(\.(pyc|pyo|pyd|pyz|pyw|whl|egg|ptl|ckpt|pkl|pickle|dill|joblib|dylib|dll|exe|sh|bash|jar|class|o|a|h5|hdf5|keras|pb"
    rf"|graphdef|savedmodel|npy|npz|tar|tgz|gz|bz2|xz|zst|so(\.\d+)*)|{'|'.join(map(re.escape, _CODE_SUFFIXES))})$",
    re.IGNORECASE,
)
_MAGIC = {
    b"PK\x03\x04": "an archive",  # TorchScript, torch.export, .mar, wheels
    b"PK\x05\x06": "an archive",
    b"\x7fELF": "a program or library",
    b"MZ": "a program or library",
    b"\xcf\xfa\xed\xfe": "a program or library",
    b"#!": "a script",
    b"\x1f\x8b": "a packed archive",
    b"BZh": "a packed archive",
    b"\xfd7zXZ": "a packed archive",
    b"\x28\xb5\x2f\xfd": "a packed archive",
    b"ftrt": "a TensorRT engine",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy file, which may hold a pickle",
    **{bytes((0x80, protocol)): "a pickle" for protocol in range(2, 6)},
}
_TAR_MAGIC_AT = 257
_CAN = "can run code, or be made to"
_PYC_NUMBERS = range(3000, 4000)  # the magic numbers of CPython 3, in the two bytes before CR LF


class Finding(NamedTuple):
    """`where`: a file, relative to the model's folder, or a field of the configuration. `sentence` has no full stop."""

    where: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The present or future content of a model's folder: the folder of each version, and all other files by name."""

    versions: Mapping[int, Path] = field(default_factory=dict)
    beside: Mapping[str, Path] = field(default_factory=dict)

    def with_version(self, number: int, folder: Path, beside: Mapping[str, Path]) -> "Contents":
        return Contents({**self.versions, number: folder}, {**self.beside, **beside})


def contents_of(model_dir: Path) -> Contents:
    """Return the contents of a model's folder; empty contents if there is no folder."""
    versions = {number: model_dir / str(number) for number in version_folders(model_dir)}
    beside: dict[str, Path] = {}
    for entry in sorted(model_dir.iterdir()) if model_dir.is_dir() else ():
        if entry.name != CONFIG_FILE and entry not in versions.values():
            files = entry.rglob("*") if entry.is_dir() else [entry]
            beside |= {path.relative_to(model_dir).as_posix(): path for path in files if path.is_file()}
    return Contents(versions, beside)


# -- code that the configuration runs ----------------------------------------------------------------------------------
def runs(config: ModelConfig, contents: Contents) -> frozenset[Finding]:
    """Return the code of these versions that a server would execute, under this configuration or one of `configs/`."""
    return frozenset().union(*_runs(config, contents).values())


def runs_for(number: int, config: ModelConfig, contents: Contents) -> frozenset[Finding]:
    """Return the code of one version that a server would execute, without the findings that another version has, too."""
    found = _runs(config, contents)
    return frozenset(found.pop(number)).difference(*found.values())


def _runs(config: ModelConfig, contents: Contents) -> dict[int, set[Finding]]:
    """Return the code that a server would execute, by the version that has it."""
    found: dict[int, set[Finding]] = {number: set() for number in contents.versions}
    for where, base in _configurations(config, contents.beside):
        for number, folder in contents.versions.items():
            found[number] |= {Finding(where + one.where, one.sentence) for one in _version_runs(base, number, folder)}
    return found


def _configurations(config: ModelConfig, beside: Mapping[str, Path]) -> Iterator[tuple[str, ModelConfig]]:
    """Yield the configuration, and every custom configuration that --model-config-name may choose in its place."""
    yield "", config
    for name, path in sorted(beside.items()):
        if _is_custom_config(name):
            custom = _parse(path)
            if custom is not None:  # no server loads a configuration that does not parse
                yield f"{name}: ", custom


def _is_custom_config(name: str) -> bool:
    return name.startswith(f"{CONFIGS_FOLDER}/") and name.endswith(".pbtxt")


def _version_runs(config: ModelConfig, number: int, folder: Path) -> Iterator[Finding]:
    effective = _overlaid(config, number, folder)
    if effective is None or _is_plain_ensemble(effective):
        return
    backend, filename = model_config.runner(effective, folder)
    files = ", ".join(f"'{name}'" for name in sorted({filename, *effective.cc_model_filenames.values()}) if name)
    if not backend:
        yield Finding(f"{number}/", f"version {number} has no file that tells what runs it, and no backend is given")
    elif backend not in DATA_BACKENDS:
        what = files or "its files"
        yield Finding(f"{number}/{filename}", f"backend '{backend}' runs {what} of version {number} as code")
    yield from _settings(effective, number)


def _settings(config: ModelConfig, number: int) -> Iterator[Finding]:
    """Yield the fields that make code run with any backend."""
    for key in sorted(config.parameters):
        value = config.parameters[key].string_value
        if key.lower() == _ENVIRONMENT and value:
            yield Finding(f'parameters["{key}"]', f"{key} runs the Python of '{value}' for version {number}")
        elif key in _RUNS:
            how, is_switch = _RUNS[key]
            if value.strip().lower() in _ON if is_switch else value:
                yield Finding(f'parameters["{key}"]', f"{key} {how.format(value=value, number=number)}")
        elif _LIBRARY_KEY.search(key):
            yield Finding(f'parameters["{key}"]', f"parameter '{key}' names a library for version {number}: '{value}'")
    for name in config.model_operations.op_library_filename:
        yield Finding("model_operations", f"version {number} loads the library '{name}' of custom operators")
    accelerators = config.optimization.execution_accelerators
    for one in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        if one.name in _ENGINE_ACCELERATORS:
            sentence = f"accelerator '{one.name}' runs compiled engines that version {number} may bring"
            yield Finding("optimization.execution_accelerators", sentence)
    for agent in config.model_repository_agents.agents:
        if agent.name not in agents.AGENTS:
            yield Finding("model_repository_agents", f"repository agent '{agent.name}' is not one of this server's")


def _is_plain_ensemble(config: ModelConfig) -> bool:
    return not config.backend and model_config.is_ensemble(config)


def _overlaid(config: ModelConfig, number: int, folder: Path) -> ModelConfig | None:
    """Return the configuration of the version, or None if its settings cannot be read, so that no server loads the version."""
    try:
        return version_settings.as_served(config, number, folder)
    except InvalidConfig:
        return None


def _parse(path: Path) -> ModelConfig | None:
    try:
        return model_config.parse_file(path)
    except InvalidConfig:
        return None


# -- new files ---------------------------------------------------------------------------------------------------------
def could_run(
    config: ModelConfig,
    number: int,
    folder: Path,
    beside: Mapping[str, Path],
    named: Iterable[str] = (),
    *,
    code_runs: bool = False,
) -> list[Finding]:
    """Return the files of a new version that are not known to be data, and such files in `beside`.

    beside: the files that come with the version, for the model's folder. named: files of the version that its model file
    names as its weights (ONNX's external data). code_runs: whether a version of the model runs code, which may use any other
    file as code.
    """
    effective = _overlaid(config, number, folder) or config
    backend, filename = ("", "") if _is_plain_ensemble(effective) else model_config.runner(effective, folder)
    data = None if code_runs else DataFiles()
    found = list(_beside(effective, beside, data))
    if backend and backend not in DATA_BACKENDS:
        return found  # `runs` reports the whole version
    read = {OVERLAY_FILE, SIGNATURE_FILE}
    if backend:
        names = {filename or DATA_BACKENDS[backend], *effective.cc_model_filenames.values()}
        read |= names | {f"{name}/model.onnx" for name in names} | set(named)
    return found + list(_unknown(number, folder, read, data))


def _beside(config: ModelConfig, beside: Mapping[str, Path], data: DataFiles | None) -> Iterator[Finding]:
    named = {output.label_filename for output in config.output}
    for sample in config.model_warmup:
        named |= {f"warmup/{tensor.input_data_file}" for tensor in sample.inputs.values()}
    for state in config.sequence_batching.state:
        named |= {f"initial_state/{initial.data_file}" for initial in state.initial_state}
    for name, path in sorted(beside.items()):
        if _is_custom_config(name) and _parse(path) is not None:
            continue  # a configuration, which `runs` checks
        why = code_in(name, path) or ("" if name in named else "the configuration does not name it")
        if why and not (data and data.has(name, path)):
            yield Finding(name, f"'{name}' {_CAN}: {why}")


def _unknown(number: int, folder: Path, read: set[str], data: DataFiles | None) -> Iterator[Finding]:
    for name in storage.plain_files(folder):
        why = code_in(name, folder / name) or ("" if name in read else "its backend does not read it")
        if why and not (data and data.has(name, folder / name)):
            yield Finding(f"{number}/{name}", f"'{name}' of version {number} {_CAN}: {why}")


def code_in(name: str, path: Path | None = None) -> str:
    """Return why a file can be code, by its name or, with a path, by its content; "" if neither is a sign of code."""
    suffix = _CODE_NAME.search(PurePosixPath(name).name)
    if suffix:
        return f"files that end in {suffix[0].lower()} can hold code"
    if path is None:
        return ""
    with path.open("rb") as file:
        head = file.read(_TAR_MAGIC_AT + 5)
    if head[_TAR_MAGIC_AT:] == b"ustar":
        return "it is a packed archive"
    if head[2:4] == b"\r\n" and int.from_bytes(head[:2], "little") in _PYC_NUMBERS:
        return "it is a compiled Python module"
    return next((f"it is {what}" for magic, what in _MAGIC.items() if head.startswith(magic)), "")
