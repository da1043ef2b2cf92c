"""Reports the progress of long work on files, and can stop it."""


class Progress:
    """Override the methods to follow the work. An error that they raise stops it, and it cleans up."""

    def plan(self, size: int) -> None:
        """Begin work of so many bytes in all steps together; a file that is copied and hashed counts twice."""

    def step(self, name: str) -> None:
        """Begin a step, named in a word or two."""

    def advance(self, size: int) -> None:
        """Count so many bytes more as done."""


SILENT = Progress()
