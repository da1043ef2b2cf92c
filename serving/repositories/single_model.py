"""A folder of --model-repository that may be one model: with --model-name its content decides, as below KServe's /mnt/models.

open_folder(folder, name, private) reads the folder once, at start:

folders with config.pbtxt or versions      a repository, which is served as it is
config.pbtxt, versions, or a model's file  one model, served under the name; version 1 if it has no folders of versions
both, or two files of models               an error, because nobody knows which one is meant
neither                                    an error that says what the folder has; in explicit mode an empty repository

One model is served from links in a private folder, because the folder itself may be read-only.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config
from repository.config.backends import BACKEND_OF_FILENAME, FILENAME_OF_SUFFIX
from repository.core.errors import InvalidConfig
from repository.core.layout import CONFIG_FILE, CONFIGS_FOLDER, MAX_VERSION, ModelRepository
from repository.files import foreign_formats
from serving.core.errors import invalid, unavailable

log = logging.getLogger(__name__)

SAVED_MODEL = "saved_model.pb"
_SAVED_MODEL_FOLDER = "model.savedmodel"
_NO_MODELS = frozenset(("lost+found",))  # the file system's own folder in the root of a volume
_SHOWN = 5  # the most names in a sentence
_MODEL_FOLDERS = (CONFIGS_FOLDER, "warmup", "initial_state")  # Triton's folders beside the versions


class LinkedRepository(ModelRepository):
    """A repository whose links may lead anywhere: what puts models there may link them from another volume."""

    def models(self) -> list[str]:
        return [name for name in super().models() if name not in _NO_MODELS]

    def _inside(self, path: Path) -> Path:
        return path


@dataclass(frozen=True, slots=True)
class Content:
    """What a folder has. models: folders that are models. versions: number -> folder. files: files that backends read."""

    folder: Path
    names: list[str]
    models: list[str]
    versions: dict[int, Path]
    files: list[str]
    has_config: bool

    @property
    def is_model(self) -> bool:
        return bool(self.has_config or self.versions or self.files)


def open_folder(folder: Path, name: str, private: Callable[[], Path], *, may_be_empty: bool) -> ModelRepository:
    """Return the repository of a folder that is a repository or one model. Call it at start, before models load.

    private: makes an empty folder, which the caller removes. may_be_empty: whether models may come later. Raises INVALID_ARG
    if nobody knows what to serve, UNAVAILABLE if the folder cannot be read or no private folder be made.
    """
    try:
        content = read_content(folder)
        if content.is_model and content.models:
            raise invalid(
                f"'{folder}' has {_shown(_signs(content))} of one model and folders of models, {_shown(content.models)}: "
                "leave one of the two out"
            )
        if content.is_model:
            return ModelView(content, name, private).repository()
        if not content.models and not (may_be_empty and not content.names):
            raise invalid(f"'{folder}' has no model: {_what_it_has(content)}")
    except OSError as error:
        raise unavailable(f"'{folder}' cannot be served as one model: {error.strerror or error}") from error
    log.info(
        "'%s' is a repository, with the models %s", folder, _shown(content.models) if content.models else "to come"
    )
    return LinkedRepository(folder)


def looks_like_one_model(folder: Path) -> bool:
    """Return whether a folder that is served as a repository is probably one model. It looks at few of the models."""
    try:
        if (folder / CONFIG_FILE).is_file() or _model_files(folder):
            return True
        folders = [entry for entry in folder.iterdir() if entry.name[0] != "." and entry.is_dir()]
        return bool(folders) and all(_number(one.name) and not _is_model_folder(one) for one in folders)
    except OSError:  # the listing of the repository says so
        return False


def read_content(folder: Path) -> Content:
    """List a folder. Hidden entries, and those of the file system, do not count. Raises OSError."""
    entries = sorted(entry for entry in folder.iterdir() if entry.name[0] != "." and entry.name not in _NO_MODELS)
    models: list[str] = []
    versions: dict[int, Path] = {}
    for entry in entries:
        if not entry.is_dir() or entry.name in BACKEND_OF_FILENAME:
            continue
        number = _number(entry.name)
        if _is_model_folder(entry):
            models.append(entry.name)
        elif number and versions.setdefault(number, entry) is not entry:
            raise invalid(f"'{folder}' has version {number} twice: '{versions[number].name}' and '{entry.name}'")
    has_config = (folder / CONFIG_FILE).exists()
    return Content(folder, [entry.name for entry in entries], models, versions, _model_files(folder), has_config)


def _is_model_folder(folder: Path) -> bool:
    if (folder / CONFIG_FILE).exists():
        return True
    return any(_number(entry.name) and entry.is_dir() for entry in folder.iterdir())


def _number(name: str) -> int:
    """Return the version that a folder's name means, or 0. Zeros may lead, as TensorFlow's exports have them."""
    digits = name.isascii() and name.isdigit() and len(name) <= 19
    return int(name) if digits and int(name) <= MAX_VERSION else 0


def _model_files(folder: Path) -> list[str]:
    """Return the files and folders that a backend reads: those with default names, else those with a model's extension."""
    standard = [name for name in BACKEND_OF_FILENAME if (folder / name).exists()]
    if standard or (folder / SAVED_MODEL).is_file():
        return standard or [SAVED_MODEL]
    suffixes = FILENAME_OF_SUFFIX.keys() - {".py"}  # any script may lie there
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())


class ModelView:
    """One model's folder as a server reads it, made of links. private: makes the folder that holds the view."""

    def __init__(self, content: Content, name: str, private: Callable[[], Path]) -> None:
        self._content = content
        self._name = name
        self._private = private
        self._at_root = not content.versions
        self._versions = content.versions or {1: content.folder}
        self._files = {number: _model_files(folder) for number, folder in self._versions.items()}

    def repository(self) -> ModelRepository:
        """Make the view, log what is served, and return the repository that has only this model. Raises INVALID_ARG."""
        content = self._content
        if not self._at_root and content.files:
            raise invalid(
                f"'{content.folder}' has folders of versions and the file '{content.files[0]}' beside them: leave one of the "
                "two out"
            )
        given = ModelConfig()
        try:
            if content.has_config:
                given = model_config.parse_file(content.folder / CONFIG_FILE)
        except InvalidConfig as error:
            raise invalid(f"'{content.folder}': {error}") from error
        config = self._fitting(given)
        parent = self._private()
        view = parent / self._name
        if config == given and self._is_laid_out:
            view.symlink_to(content.folder)  # a poll sees its new versions, too
        else:
            view.mkdir()
            self._link_all(view)
            if config != given:
                (view / CONFIG_FILE).write_text(model_config.format(config))
            elif content.has_config:
                (view / CONFIG_FILE).symlink_to(content.folder / CONFIG_FILE)
        log.info("'%s' is one model, served as '%s': %s", content.folder, self._name, self._description(given, config))
        return LinkedRepository(parent)

    @property
    def _is_laid_out(self) -> bool:
        """Return whether a server finds the versions and their files without a change."""
        plain = all(folder.name == str(number) for number, folder in self._versions.items())
        return plain and not self._at_root and not any(SAVED_MODEL in files for files in self._files.values())

    def _fitting(self, given: ModelConfig) -> ModelConfig:
        """Return the configuration without another name, and with the name of a model's file that has no default name."""
        config = ModelConfig()
        config.CopyFrom(given)
        if config.name != self._name:
            config.ClearField("name")
        if model_config.is_ensemble(config) or config.default_model_filename:
            return config
        backend = model_config.backend_of(config)
        for number, files in self._files.items():
            fitting = [file for file in files if backend in ("", _backend_of(file))]
            if len(fitting) > 1:
                raise invalid(
                    f"'{self._versions[number]}' has several models, {_shown(fitting)}: leave one of them, or name it in "
                    f"default_model_filename of {CONFIG_FILE}"
                )
            if fitting and fitting[0] not in BACKEND_OF_FILENAME and fitting[0] != SAVED_MODEL:
                config.default_model_filename = fitting[0]
                config.backend = _backend_of(fitting[0])
                break
        return config

    def _link_all(self, view: Path) -> None:
        folder = self._content.folder
        for number, version in self._versions.items():
            target = view / str(number)
            if SAVED_MODEL in self._files[number]:
                target.mkdir()
                target /= _SAVED_MODEL_FOLDER
            target.symlink_to(version)
        for name in self._content.names:  # labels, custom configurations and what warms the model up
            entry = folder / name
            if name != CONFIG_FILE and (name in _MODEL_FOLDERS or entry.is_file()):
                (view / name).symlink_to(entry)

    def _description(self, given: ModelConfig, config: ModelConfig) -> str:
        versions = ", ".join(
            str(number) if folder.name == str(number) or self._at_root else f"{number} ('{folder.name}')"
            for number, folder in self._versions.items()
        )
        renamed = f"; its {CONFIG_FILE} has the name '{given.name}'" if given.name != config.name else ""
        return f"version {versions}{renamed}"


def _backend_of(file: str) -> str:
    standard = file if file in BACKEND_OF_FILENAME else FILENAME_OF_SUFFIX.get(Path(file).suffix.lower(), "")
    return BACKEND_OF_FILENAME.get(_SAVED_MODEL_FOLDER if file == SAVED_MODEL else standard, "")


def _signs(content: Content) -> list[str]:
    config = [CONFIG_FILE] if content.has_config else []
    return [*config, *(path.name for path in content.versions.values()), *content.files]


def _what_it_has(content: Content) -> str:
    """Return why a folder without a model cannot be served, and what to do."""
    if not content.names:
        return "it is empty"
    folder = content.folder
    for name in content.names:
        files = _model_files(folder / name) if (folder / name).is_dir() else []
        if files and files[0].endswith(".mar"):
            return f"'{name}' has archives, such as '{files[0]}': give it as --model-store, with --ts-config"
        if files:
            return f"the folder '{name}' has '{files[0]}', but no version: move the model's files into '{name}/1'"
    files = [name for name in content.names if (folder / name).is_file()]
    told = foreign_formats.by_names(files)
    if told is None:
        heads = ((name, foreign_formats.by_head(_head(folder / name))) for name in files[:_SHOWN])
        told = next(((name, kind) for name, kind in heads if kind is not None), None)
    if told is not None and told[1] is not foreign_formats.TEXT:
        return f"'{told[0]}' is none, because {told[1].sentence}"
    expected = f"{CONFIG_FILE}, a folder 1, a file such as model.onnx, or folders of models"
    return f"it has {_shown(content.names)}; expected {expected}"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(foreign_formats.HEAD_BYTES)


def _shown(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
