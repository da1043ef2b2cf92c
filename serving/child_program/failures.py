"""Turns an exception of the child into one sentence for the client, with its place in the model's files and no other path."""

import sys
import traceback
from pathlib import Path

from serving.backends.channel.messages import Failed
from serving.core.errors import without_paths

# Exceptions whose text is meant for the client.
_SENTENCES = ("ServingError", "TritonModelException", "HandlerProblem")


def failed(error: BaseException, folder: str) -> Failed:
    """Return the message for the server, and write the traceback to the log. folder: the folder of the model's version."""
    log_traceback(error)
    code = getattr(getattr(error, "code", None), "value", None)
    return {
        "op": "failed",
        "message": describe(error, folder),
        "code": code if isinstance(code, str) else "INTERNAL",
    }


def log_traceback(error: BaseException) -> None:
    """Write an exception with its traceback as one error to the log (serving.backends.child.process.OutputLog)."""
    text = "".join(traceback.format_exception(error)).rstrip("\n").replace("\n", "\x1f")
    sys.stderr.write(f"\x1eE{text}\n")
    sys.stderr.flush()


def describe(error: BaseException, folder: str) -> str:
    """Return the exception as a sentence, with its place in the model's folder."""
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    if not any(base.__name__ in _SENTENCES for base in type(error).__mro__):
        text = without_paths(_clean(text, folder))
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        place = _place(error, folder)
        text = f"{text} ({place})" if place else text
    return _clean(text, folder)


def _place(error: BaseException, folder: str) -> str:
    if not folder:
        return ""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(folder):
        return f"{Path(error.filename).relative_to(folder)}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(folder):
            return f"{Path(frame.filename).relative_to(folder)}, line {frame.lineno}, in {frame.name}"
    return ""


def _clean(text: str, folder: str) -> str:
    """Return the text without the model's own folder, and in valid UTF-8."""
    if folder:
        text = text.replace(f"{folder}/", "").replace(folder, ".")
    return text.encode("utf-8", "replace").decode()
