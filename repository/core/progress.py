"""What long work on files says of itself while it goes on."""


class Progress:
    """Heard by whoever overrides it. Whatever its methods raise ends the work, which then leaves nothing behind."""

    def plan(self, size: int) -> None:
        """Bytes to go through in all steps together; a file that is copied and hashed counts twice."""

    def step(self, name: str) -> None:
        """What begins now, in a word or two."""

    def advance(self, size: int) -> None:
        """So many bytes more are done."""


SILENT = Progress()
