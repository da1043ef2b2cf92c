"""What the JSON columns of an upload hold, each with the one place that writes it as JSON and the one that reads it back.

proposal      Proposal      what the inspection found; written when it ends (states.accept), shown over REST as it is
contents      Contents      which files the version consists of; written with the proposal
publication   Publication   what publishing was asked for last; written when it is asked for (states.publish), with the
                            decided text before the version is placed (states.decide), emptied when it is done
"""

from dataclasses import asdict, dataclass, field
from typing import Any, NotRequired, TypedDict

from repository.config.document import Document
from repository.config.signature import SignatureObject


class Finding(TypedDict):
    severity: str  # "error": these files cannot be served; "warning"; "note": good to know
    message: str
    code: NotRequired[str]  # lines for Python or a shell that mend it


class TensorRow(TypedDict):
    name: str
    datatype: str
    shape: list[int]
    optional: NotRequired[bool]  # an input that may stay away


class Proposal(TypedDict, total=False):
    """The report of `python -m serving.inspect` (docs/server.md); what it has no key for, `uploads.inspection` adds."""

    format: str
    backend: str
    filename: str
    inputs: list[TensorRow]
    outputs: list[TensorRow]
    signature: SignatureObject | None  # the file's own
    opset: int
    producer: str
    names: list[str]  # files that the model file names as its weights
    missing: list[str]  # those of them that are not there
    class_names: dict[str, list[str]]  # output -> the names of its classes, where the file says them
    archive: dict[str, Any] | None  # what it says of itself (docs/server.md)
    executes_code: bool
    problems: list[Finding]
    config: str  # the text to review
    batching_config: str  # one in which a model that was exported for one row takes any number; "" where that is no way
    config_source: str  # where that comes from: "upload", "model" (the present configuration) or "file" (proposed)
    fitting: str  # the text that fits these files, where `config` is the model's and does not
    base_release: int  # the model's newest release at that moment, 0 for none


@dataclass(frozen=True, slots=True)
class Contents:
    """files: names inside the version. model_files: name beside the versions -> path inside the upload's folder."""

    files: list[str] = field(default_factory=list)
    model_files: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "model_files": self.model_files}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Contents":
        """Read a row; one of before the inspection has neither."""
        return cls(files=stored.get("files", []), model_files=stored.get("model_files", {}))


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What a person asked for.

    config_text: None is the configuration that the upload brings, or that the model has when the version is placed.
    base_release: the model's release that the text was made from; 0 for none, None where that is not known.
    strict: a base_release that is outdated is refused even where the texts are the same.
    rights: the names of the rights that the person had.
    """

    config_text: str | None = None
    base_release: int | None = None
    strict: bool = False
    note: str = ""
    make_live: bool = False
    load: bool = True
    rights: tuple[str, ...] = ()

    @property
    def document(self) -> Document | None:
        return None if self.config_text is None else Document.read(self.config_text)


@dataclass(frozen=True, slots=True)
class Publication:
    """A request with what is needed to finish it after a crash.

    number: of the version. actor: the primary key of who asked, None for the system.
    text: what config.pbtxt becomes, with its stamp; None until that is decided, just before the version is placed.
    """

    request: PublishRequest
    number: int
    actor: int | None
    text: str | None = None

    @property
    def document(self) -> Document:
        """The text without its stamp; an empty one before it is decided."""
        return Document.read(self.text or "")

    def to_json(self) -> dict[str, Any]:
        decided = {} if self.text is None else {"text": self.text}
        return {**asdict(self.request), "number": self.number, "actor": self.actor, **decided}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Publication | None":
        """Read a row; None where nothing was asked for."""
        if not stored:
            return None
        known = {name: stored[name] for name in PublishRequest.__dataclass_fields__ if name in stored}
        request = PublishRequest(**{**known, "rights": tuple(known.get("rights", ()))})
        return cls(request, number=stored["number"], actor=stored.get("actor"), text=stored.get("text"))
