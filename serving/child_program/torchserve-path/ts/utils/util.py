"""Labels of classes, classes of a module, and the exception by which a handler answers with a status of its own."""


class PredictionException(Exception):
    """Raised by a handler: the client is answered with this message and status."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"
