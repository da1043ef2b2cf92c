"""Two people's changes of one config.pbtxt in one text: line by line, or else field by field, where they do not touch."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.edit import apply
from repository.config.lines import hunks
from repository.config.model_config import parse
from repository.core.errors import InvalidConfig


def merge(base: str, mine: str, theirs: str) -> str | None:
    """Return `theirs` with what `mine` changed of `base`; None where both changed the same, or a text has mistakes."""
    try:
        wanted = _fields_merged(parse(base), parse(mine), parse(theirs))
        if wanted is None:
            return None
        text = _lines_merged(*(text.splitlines(keepends=True) for text in (base, mine, theirs)))
        return text if text is not None and parse(text) == wanted else apply(theirs, wanted)
    except InvalidConfig:
        return None


def _fields_merged(base: ModelConfig, mine: ModelConfig, theirs: ModelConfig) -> ModelConfig | None:
    """Return their configuration with my fields, the outermost ones; None where both changed one, each in another way."""
    merged = ModelConfig()
    merged.CopyFrom(theirs)
    before, own, other = ({field.name: value for field, value in one.ListFields()} for one in (base, mine, theirs))
    for name in own.keys() | before.keys():
        if own.get(name) == before.get(name) or own.get(name) == other.get(name):
            continue
        if other.get(name) != before.get(name):
            return None
        merged.ClearField(name)
        if name in own:
            part = ModelConfig()
            part.CopyFrom(mine)
            for field, _ in mine.ListFields():
                if field.name != name:
                    part.ClearField(field.name)
            merged.MergeFrom(part)
    return merged


def _lines_merged(base: list[str], mine: list[str], theirs: list[str]) -> str | None:
    """Return the text with both changes; None where they touch."""
    changes = sorted(
        {
            (hunk.start, hunk.end, tuple(one[hunk.from_ : hunk.to]))
            for one in (mine, theirs)
            for hunk in hunks(base, one)
        }
    )
    merged: list[str] = []
    position = 0
    for index, (start, end, lines) in enumerate(changes):
        if index and start <= changes[index - 1][1]:
            return None
        merged += [*base[position:start], *lines]
        position = end
    return "".join([*merged, *base[position:]])
