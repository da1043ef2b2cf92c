"""Routes each request of a sequence to the model that has the sequence open, whatever version its name means by now.

A name may come to mean another version in the middle of a sequence: an alias moves, a release or a rollout's weight chooses
another version, a version is replaced or retired. A model's scheduler knows its open sequences, also while the model drains; a
RemoteModel knows those on its server. Where several know the same correlation ID, the sequence that began last counts.
"""

from collections.abc import Callable, Sequence

from serving.core.in_flight import InFlightRequest
from serving.models.model import Model
from serving.models.sleeping_model import SleepingModel
from serving.traffic.remotes.remote_model import RemoteModel
from serving.traffic.split import TrafficSplit

Keeps = Model | SleepingModel | RemoteModel


class SequenceRoute:
    """Stands before the destination of a name where more than one model may have a sequence of it open."""

    def __init__(
        self,
        models: Sequence[Keeps],
        submit: Callable[[InFlightRequest], None],
        split: TrafficSplit | None = None,
    ) -> None:
        """submit: takes requests of no open sequence; raises where none serves. split: of a rollout, counts the others."""
        self._models = models
        self._submit = submit
        self._split = split

    def submit(self, request: InFlightRequest) -> None:
        position = request.sequence
        if not position.id or position.start:
            self._submit(request)
            return
        model = self._having(position.id)
        if model is None:
            self._submit(request)
        elif self._split is None:
            model.submit(request)
        else:
            self._split.proceed(request, model, 0 if isinstance(model, RemoteModel) else model.spec.version)

    def _having(self, identifier: int | str) -> Keeps | None:
        """Return the model in which a sequence is open; None without one."""
        found, latest = None, 0
        for model in self._models:
            begun = model.sequence_start_ns(identifier)
            if begun > latest:
                found, latest = model, begun
        return found
