"""How far long work on files has come, and how it is stopped."""


class Progress:
    """Override the methods to be told. Whatever they raise ends the work, which then leaves nothing behind."""

    def plan(self, size: int) -> None:
        """Begin work of so many bytes in all steps together; a file that is copied and hashed counts twice."""

    def step(self, name: str) -> None:
        """Begin a step, named in a word or two."""

    def advance(self, size: int) -> None:
        """Count so many bytes more as done."""


SILENT = Progress()
