"""Reads TorchServe's archives for the pages of uploads and versions. No code in them is run."""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from dashboard.catalog.archives import ArchivedFile, ArchiveReader, ModelArchive, Setting, ShownText
from dashboard.models.version import ArchiveFacts
from dashboard.shared.exceptions import NotFound
from repository.core.json_types import Json
from repository.torchserve import model_archive
from repository.torchserve.model_archive import FOLDER, ModelSettings

TEXT_BYTES = 64 << 10  # the most bytes that are shown of a file
FILES_MOST = 500
_VALUE_MOST = 300  # the most characters that are shown of a setting
_TEXTS = (".py", ".txt", ".json", ".yaml", ".yml", ".md", ".cfg", ".ini", ".toml", ".csv", ".sh")
# Keys of model-config.yaml that decide how the model is served -> their meaning in Slipway.
_MEANINGS = {
    "batchSize": "the largest batch",
    "maxBatchDelay": "milliseconds that a request may wait for company: the queue delay",
    "minWorkers": "workers: the instances of the model",
    "maxWorkers": "the most workers that somebody may ask for",
    "responseTimeout": "seconds that a batch may take, then its worker is replaced",
    "startupTimeout": "seconds that a worker may take to load the model",
    "deviceType": "where the workers run",
    "deviceIds": "the GPUs that the workers are divided among",
    "jobQueueSize": "requests that may wait: the longest queue",
    "clientTimeoutInMills": "milliseconds that a request may wait for a worker",
    "parallelType": "how a model is divided among processes",
}


class TorchServeArchives(ArchiveReader):
    backend = "torchserve"

    def find(self, folder: Path) -> Path | None:
        if (folder / FOLDER).is_dir():
            return folder
        found = sorted(folder.glob("*.mar")) if folder.is_dir() else []
        return next((path for path in found if path.name == "model.mar"), found[0] if found else None)

    def facts(self, path: Path) -> ArchiveFacts:
        manifest, _, _, streams = model_archive.read_archive(path)
        return {
            "name": manifest.name[:200],
            "version": manifest.version[:100],
            "handler": manifest.handler[:200],
            "streams": streams,
        }

    def read(self, path: Path, shown: str) -> ModelArchive:
        manifest, settings, sizes, streams = model_archive.read_archive(path)
        handler = model_archive.handler_file(manifest, sizes)
        if shown and not _is_text(shown, sizes):
            raise NotFound(f"the archive has no text '{shown[:80]}'")
        wanted = shown or handler
        rows = [ArchivedFile(name, sizes[name], _is_text(name, sizes)) for name in sorted(sizes)]
        return ModelArchive(
            template="imports/model_archive.html",
            manifest=manifest,
            handler_file=handler,
            streams=streams,
            settings=_settings(settings),
            files=rows[:FILES_MOST],
            files_total=len(rows),
            requirements=_text(path, manifest.requirements_file).text if manifest.requirements_file else "",
            source=_text(path, wanted) if wanted and _is_text(wanted, sizes) else None,
        )

    def said_settings(self, path: Path) -> Mapping[str, int | None]:
        _, said = model_archive.read_description(path)
        delay = said.max_batch_delay_ms
        return {
            "max_batch_size": said.batch_size,
            "max_queue_delay_microseconds": None if delay is None else delay * 1000,
            "queue_max_size": said.job_queue_size,
            "instances": said.min_workers or None,
            "response_timeout_s": said.response_timeout_s,
            "startup_timeout_s": said.startup_timeout_s,
        }

    def is_foreign(self, path: Path) -> bool:
        return model_archive.is_other_tar(path)


READER = TorchServeArchives()


def _is_text(name: str, sizes: Mapping[str, int]) -> bool:
    return name in sizes and name.lower().endswith(_TEXTS) and sizes[name] <= model_archive.MAX_TEXT_BYTES


def _text(path: Path, name: str) -> ShownText:
    content = model_archive.read_file(path, name)
    text = content[:TEXT_BYTES].decode(errors="replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return ShownText(name, text, len(content) > TEXT_BYTES)


def _settings(settings: ModelSettings) -> list[Setting]:
    """Return the settings in order: those that Slipway can honour, TorchServe's other settings, the handler's settings."""
    order = [*_MEANINGS, *settings.unserved]
    keys = [*(key for key in order if key in settings.whole), *(key for key in settings.whole if key not in order)]
    return [
        Setting(
            key,
            _written(settings.whole[key]),
            _MEANINGS.get(key, ""),
            key not in settings.unserved and key not in settings.unusable,
        )
        for key in keys
    ]


def _written(value: Json) -> str:
    """Return a value as text, nested values as YAML, cut to _VALUE_MOST characters."""
    nested = isinstance(value, dict | list)
    scalar = value if isinstance(value, str) else json.dumps(value)
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True).strip() if nested else scalar
    return text if len(text) <= _VALUE_MOST else f"{text[:_VALUE_MOST]} …"
