"""The JSON columns of an upload, as types that read and write them.

proposal      Proposal      the inspection's report; written when it ends (states.accept), shown over REST unchanged
contents      Contents      the files of the version; written with the proposal
conversion    Conversion    the recipes that take the files, written with the proposal; the last request to convert them, and
                            where the present files come from
publication   Publication   the last request to publish; states.publish writes it, states.decide adds the final text, and a
                            finished publication empties it
"""

from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict

from repository.config.document import Document
from repository.config.signature import SignatureObject


class Finding(TypedDict):
    severity: str  # "error": these files cannot be served; "warning"; "note": good to know
    message: str
    code: NotRequired[str]  # lines of Python or shell that fix it


class TensorRow(TypedDict):
    name: str
    datatype: str
    shape: list[int]
    optional: NotRequired[bool]  # an input that a request may omit


class Proposal(TypedDict, total=False):
    """The report of `python -m serving.inspect` (docs/server.md), with further keys that `uploads.inspection` adds."""

    format: str
    backend: str
    filename: str
    inputs: list[TensorRow]
    outputs: list[TensorRow]
    signature: SignatureObject | None  # the file's own
    opset: int
    producer: str
    names: list[str]  # the weight files that the model file names
    missing: list[str]  # the files in `names` that were not uploaded
    class_names: dict[str, list[str]]  # output -> the names of its classes, if the file has them
    archive: dict[str, Any] | None  # the facts of an archive (docs/server.md)
    executes_code: bool
    problems: list[Finding]
    config: str  # the text to review
    batching_config: str  # a text that lets a model exported for one row take any number of rows; "" if there is none
    config_source: str  # the origin of `config`: "upload", "model" (the present configuration) or "file" (proposed)
    fitting: str  # a text that fits these files, if `config` is the model's and does not fit them
    base_release: int  # the model's newest release at the time of the inspection, 0 for none


class Contents(TypedDict, total=False):
    """The files of a version. Both keys are set when the inspection has ended."""

    files: list[str]  # names in the version's folder
    model_files: dict[str, str]  # name in the model's folder -> path in the upload's folder


class Offer(TypedDict):
    """A recipe that takes the files of an upload."""

    recipe: str
    environment: str
    loads_code: bool  # whether it may run code of the files


class PickleImports(TypedDict):
    """What the pickles of an upload import; all lists are empty if there is no pickle."""

    names: list[str]
    dangerous: list[str]  # those that can do harm when the pickle is loaded
    unread: list[str]  # the files that could not be read to their end


class Conversion(TypedDict, total=False):
    offers: list[Offer]
    imports: PickleImports
    recipe: str  # of the last request
    options: dict[str, Any]
    given_up: list[str]  # the promises of confinement that the person gave up
    error: str  # why the last conversion came to nothing
    lineage: list[
        dict[str, Any]
    ]  # where the present files come from: a lineage for each conversion, the first one first
    parts: list[str]  # the uploads of further models, which the converted model calls


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A person's request to publish an upload.

    document: the configuration to publish. None publishes the upload's own configuration, or else the model's present one.
    base_release: the model's release that the document was made from; 0 for none, None if unknown.
    strict: whether an outdated base_release is refused even if the texts are the same.
    rights: the names of the person's rights when they asked.
    """

    document: Document | None = None
    base_release: int | None = None
    strict: bool = False
    note: str = ""
    make_live: bool = False
    load: bool = True
    rights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Publication:
    """A request to publish, with everything that is needed to finish it after a crash.

    number: the number of the version. actor: the primary key of the person, None for the system.
    text: the new config.pbtxt with its stamp, or None until it is decided, just before the version is placed.
    """

    request: PublishRequest
    number: int
    actor: int | None
    text: str | None = None

    @property
    def document(self) -> Document:
        """The text without its stamp; empty before it is decided."""
        return Document.read(self.text or "")

    def to_json(self) -> dict[str, Any]:
        asked, decided = asdict(self.request), {} if self.text is None else {"text": self.text}
        document = asked.pop("document")
        text = None if document is None else document["text"]
        return {**asked, "config_text": text, "number": self.number, "actor": self.actor, **decided}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Publication | None":
        """Read a row; return None if nobody has requested publishing."""
        if not stored:
            return None
        known = {name: stored[name] for name in PublishRequest.__dataclass_fields__ if name in stored}
        text, rights = stored.get("config_text"), tuple(known.pop("rights", ()))
        request = PublishRequest(None if text is None else Document.read(text), rights=rights, **known)
        return cls(request, number=stored["number"], actor=stored.get("actor"), text=stored.get("text"))
