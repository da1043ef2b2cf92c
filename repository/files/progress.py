"""Reports the progress of long work on files, and can stop that work."""


class Progress:
    """Override the methods to follow the work. If a method raises an error, the work stops and cleans up."""

    def plan(self, size: int) -> None:
        """Begin work on `size` bytes, the sum over all steps: a file that is copied and hashed counts twice."""

    def step(self, name: str) -> None:
        """Begin a step, named in a word or two."""

    def advance(self, size: int) -> None:
        """Count `size` more bytes as done."""


SILENT = Progress()
