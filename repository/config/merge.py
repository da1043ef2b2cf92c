"""Merges two people's changes of one config.pbtxt, by lines or else by fields, where the changes do not touch."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.lines import hunks


def merged_fields(base: ModelConfig, mine: ModelConfig, theirs: ModelConfig) -> ModelConfig | None:
    """Return `theirs` with the outermost fields that `mine` changed, or None if both changed the same field differently."""
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


def merged_lines(*texts: str) -> str | None:
    """Return the first text, the base, with the changes of the two others, or None if the changes touch."""
    base, mine, theirs = (text.splitlines(keepends=True) for text in texts)
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
