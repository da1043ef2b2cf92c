"""A model on disk: its configuration, and the files of the versions that its version policy selects.

Two reads with equal keys load the same model, which makes loading idempotent and polling cheap.
"""

import contextlib
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config, release, traffic, version_policy, version_settings
from repository.core import layout
from repository.core.errors import NotFound, RepositoryError
from serving.core.errors import Code, ServingError, invalid, not_found

# (relative path, size, mtime ns, inode) of each file
Files = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class VersionSource:
    """`config` is the configuration as written, with the version's overlay merged in. It is completed later."""

    version: int
    model_dir: Path
    config: ModelConfig
    files: Files

    @property
    def key(self) -> tuple[Files, bytes]:
        return self.files, self.config.SerializeToString(deterministic=True)


class Unservable(ServingError):
    """Raised when a model exists, but not the versions that its configuration asks for."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


def read_source(
    name: str, model_dir: Path, override: str = "", custom: str = "", *, strict: bool = False
) -> list[VersionSource]:
    """Return the selected versions, in ascending order.

    override: a JSON configuration that replaces config.pbtxt. custom: the name of a preferred configuration in configs/.
    strict: whether config.pbtxt or the custom configuration must exist.

    Raises NOT_FOUND if the folder or a required file is missing, INVALID_ARG for a configuration that does not parse, and
    Unservable if a version that the configuration needs is missing.
    """
    if not model_dir.is_dir():
        raise not_found(f"model '{name}' has no folder in the model repository")
    try:
        base = _with_name(
            name, _parse_override(override) if override else _read_config(model_dir, None, custom, strict)
        )
        available = layout.version_folders(model_dir)
        selected = version_policy.select(base, available)
        if not selected:
            raise Unservable(_nothing_selected(name, base, available))
        _refuse_unserved(name, base, selected)
        configured = {layout.CONFIG_FILE, layout.CONFIGS_FOLDER}  # these files are already part of `config`
        common = _list_files(model_dir, skip=frozenset(str(version) for version in available) | configured)
        configs = {
            version: version_settings.for_version(
                base if override else _with_name(name, _read_config(model_dir, version, custom, strict)), version
            )
            for version in selected
        }
        return [_version(model_dir, version, config, common) for version, config in configs.items()]
    except RepositoryError as error:
        raise invalid(f"model '{name}': {error}") from error


def fingerprint(model_dir: Path) -> Files:
    """Return a value that changes with any file of a model."""
    return _list_files(model_dir, skip=frozenset())


def write_override(folder: Path, files: Mapping[str, bytes]) -> None:
    """Store Triton's `file:<version>/<name>` parameters below `folder`. Raises UnsafePath for a name that leads out of the
    folder."""
    for name, content in files.items():
        relative = layout.relative_path(posixpath.normpath(name.removeprefix("file:").lstrip("/")))
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _version(model_dir: Path, version: int, config: ModelConfig, common: Files) -> VersionSource:
    files = _list_files(
        model_dir / str(version), frozenset((layout.OVERLAY_FILE,))
    )  # the overlay is already part of `config`
    return VersionSource(version, model_dir, config, common + files)


def _parse_override(text: str) -> ModelConfig:
    try:
        return model_config.parse_json(text)
    except RepositoryError as error:
        raise invalid(f"Invalid config override: {error}") from error


def _read_config(model_dir: Path, version: int | None, custom: str, strict: bool) -> ModelConfig:
    """Read config.pbtxt. Without a config.pbtxt, return an empty configuration, which will be completed from the model file."""
    if strict and not model_config.has_config(model_dir, custom):
        raise not_found(
            f"failed to open text file for read {model_dir.name}/{layout.CONFIG_FILE}: No such file or directory, and "
            "--disable-auto-complete-config needs one"
        )
    try:
        return model_config.read(model_dir, version, custom)
    except NotFound:
        return ModelConfig()


def _with_name(name: str, config: ModelConfig) -> ModelConfig:
    if config.name and config.name != name:
        raise invalid(
            f"model '{name}': the configuration's name is '{config.name}', expected the folder's name '{name}'"
        )
    config.name = name
    return config


def _refuse_unserved(name: str, config: ModelConfig, selected: list[int]) -> None:
    """Raise Unservable if an alias or the candidate of a rollout is a version that is not selected."""
    rules = (
        (release.ALIASES, release.aliases_problem, release.unserved_alias),
        (traffic.PARAMETER, traffic.traffic_problem, traffic.unserved_candidate),
    )
    for parameter, wrong, unserved in rules:
        value = model_config.get_parameter(config, parameter)
        if value is None or wrong(value, config):  # reported later, with the other mistakes of the configuration
            continue
        if problem := unserved(config, selected):
            raise Unservable(f"model '{name}': {problem}")


def _nothing_selected(name: str, config: ModelConfig, available: list[int]) -> str:
    if not available:
        reason = "it has no folder named by a version number"
    else:
        there = ", ".join(map(str, available))
        reason = f"it asks for {version_policy.describe(config)}, and there are {there}"
    return f"at least one version must be available under the version policy of model '{name}': {reason}"


def _list_files(folder: Path, skip: frozenset[str]) -> Files:
    """List the files below a folder.

    Raises INVALID_ARG for files that cannot be read, and for pipes, sockets and devices, whose readers would wait for ever.
    """
    found: list[tuple[str, int, int, int]] = []
    _walk(str(folder), "", skip, found, ())
    return tuple(sorted(found))


def _walk(
    folder: str,
    prefix: str,
    skip: frozenset[str],
    found: list[tuple[str, int, int, int]],
    above: tuple[tuple[int, int], ...],
) -> None:
    """List one folder. `above`: device and inode of each parent folder, because a link to one of these would be a cycle."""
    with _readable(prefix or "its folder"), os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if (not prefix and entry.name in skip) or entry.name == "__pycache__":
                continue
            try:
                with _readable(name):
                    status = entry.stat()
            except FileNotFoundError:  # a dangling link, or a file that was just deleted
                continue
            if stat.S_ISDIR(status.st_mode):
                here = (status.st_dev, status.st_ino)
                if here in above:
                    raise invalid(f"'{name}' is a link to a folder that it lies in")
                _walk(entry.path, f"{name}/", skip, found, (*above, here))
            elif stat.S_ISREG(status.st_mode):
                found.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
            else:
                raise invalid(f"'{name}' is neither a file nor a folder; remove it from the model's folder")


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise invalid(f"'{name}' cannot be read: {error.strerror}") from None
