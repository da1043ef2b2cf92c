"""Objects in the cloud, below the prefixes that an administrator allows. The credentials are those of model repositories in the
cloud (repository.remote.address); neither rows nor answers have them."""

from collections.abc import Mapping

from django.conf import settings

from dashboard.shared.exceptions import Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.sources.base import (
    Field,
    Pieces,
    Place,
    Source,
    SourceChanged,
    SourceFile,
    pieces,
    refuse_too_many,
)
from repository.core.errors import RepositoryError
from repository.remote.address import is_remote, parse
from repository.remote.repository import FileSystem, content_token, explained, file_system, object_size

ADDRESS = Field("address", "Address", "{place}/model.onnx", "An object, or a prefix with the files of a version.")


class Bucket(Source):
    name, label, setting = "bucket", "a bucket", "SLIPWAY_SOURCE_BUCKETS"
    fields: tuple[Field, ...] = (ADDRESS,)

    def allowed_places(self) -> list[str]:
        return list(settings.SOURCE_BUCKETS)

    def files(self, place: Place) -> list[SourceFile]:
        return bucket_files(place["address"])

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        system, root = _system(place["address"])
        # The address of one object ends in its name; a folder may have the same name as a file in it.
        path = root if _details(system, root) is not None else f"{root}/{file.name}"
        _refuse_changed(_details(system, path), file)
        try:
            with system.open(path, "rb") as stream:
                stream.seek(offset)
                yield from pieces(stream)
        except FileNotFoundError:
            raise SourceChanged(file.name, "was removed") from None
        except Exception as error:  # every library of a store has errors of its own
            raise Unavailable(explained(error, "bucket").message) from error
        _refuse_changed(_details(system, path), file)


def refuse_other_bucket(address: str) -> None:
    """Raise Forbidden unless an address is an allowed prefix, or below one."""
    allowed = any(address == prefix or address.startswith(f"{prefix}/") for prefix in settings.SOURCE_BUCKETS)
    if not allowed or "/../" in f"{address}/":
        raise Forbidden("this bucket may not be read; an administrator allows prefixes by SLIPWAY_SOURCE_BUCKETS")


def bucket_files(address: str) -> list[SourceFile]:
    """Return the object at an allowed address, or the objects below it, sorted by name."""
    if not is_remote(address):
        raise Invalid.at("address", "expected an address such as s3://bucket/path")
    system, root = _system(address)
    try:
        found = system.find(root, detail=True)
    except Exception as error:
        raise Unavailable(explained(error, "bucket").message) from error
    if not found:
        raise NotFound("there is no object at this address")
    refuse_too_many(len(found))
    rows = []
    for path, details in found.items():
        name = path.removeprefix(root).lstrip("/") or path.rpartition("/")[2]
        if not name.endswith("/") and details.get("type") != "directory":
            rows.append(SourceFile(name, object_size(details), content_token(details)))
    return sorted(rows)


def _system(address: str) -> tuple[FileSystem, str]:
    refuse_other_bucket(address)
    try:
        system, root = file_system(parse(address))
        system.invalidate_cache()
    except RepositoryError as error:
        raise Invalid.at("address", error.message) from None
    except Exception as error:
        raise Unavailable(explained(error, "bucket").message) from error
    return system, root


def _details(system: FileSystem, path: str) -> Mapping[str, object] | None:
    """Return the description of one object; None if there is none."""
    try:
        found = system.info(path)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise Unavailable(explained(error, "bucket").message) from error
    return None if found.get("type") == "directory" else found


def _refuse_changed(details: Mapping[str, object] | None, file: SourceFile) -> None:
    if details is None:
        raise SourceChanged(file.name, "was removed")
    if object_size(details) != file.size or content_token(details) != file.token:
        raise SourceChanged(file.name, "was changed")
