"""Asks a model's process whether the model is ready: the model's method `is_ready` answers."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from serving.backends.channel.messages import IsReady
from serving.backends.channel.tensors import Memory
from serving.backends.child.codec import Handler

log = logging.getLogger(__name__)


class ChildReadiness:
    """Asks one child. There is one question at a time. Callers that ask before its answer arrives share the answer.

    name: the name of the instance, for the log. tell: sends the child a message, from any thread.
    """

    def __init__(self, name: str, tell: Callable[[IsReady], None]) -> None:
        self._name = name
        self._tell = tell
        self._lock = threading.Lock()
        self._asked: Future[bool] | None = None
        self._ended = False
        self._reason = ""  # the reason of the last answer "not ready"; "" if the model was ready
        self.handlers: Mapping[str, Handler] = {"is_ready": self._answered}

    def ask(self) -> "Future[bool]":
        """Ask the model. Callable on any thread. The caller decides how long to wait, because the answer may be late."""
        with self._lock:
            if self._asked is not None:
                return self._asked
            asked = self._asked = Future()
            ended = self._ended
        if ended:
            self._resolve(False)
        else:
            self._tell({"op": "is_ready", "id": 0})
        return asked

    def unheard(self) -> None:
        """Answer that the model is not ready, because the child gives no sign of life."""
        self._resolve(False)

    def close(self) -> None:
        """Answer that the model is not ready, because the child has ended."""
        self._ended = True
        self._resolve(False)

    def _answered(self, message: IsReady, memory: Memory) -> None:
        ready = message.get("value") is True
        reason = "" if ready else str(message.get("error") or "is_ready returned False")[:1000]
        if reason != self._reason:
            log.warning("%s is not ready: %s", self._name, reason) if reason else log.info("%s is ready", self._name)
        self._reason = reason
        self._resolve(ready)

    def _resolve(self, ready: bool) -> None:
        with self._lock:
            asked, self._asked = self._asked, None
        if asked is not None:
            asked.set_result(ready)
