"""Where a request of a sequence goes: to the version that has the sequence open, whatever its name means by now.

A name may come to mean another version in the middle of a sequence: an alias is moved, a release or a rollout's weight changes
what answers, a version is replaced or retired. Who has a sequence open its scheduler knows, also while it drains, and what asks
another server; where several know the same correlation ID, the one that began last.
"""

from collections.abc import Callable, Sequence

from serving.core.in_flight import InFlightRequest
from serving.models.model import Model
from serving.models.sleeping_model import SleepingModel
from serving.traffic.remotes.remote_model import RemoteModel
from serving.traffic.split import TrafficSplit

Keeps = Model | SleepingModel | RemoteModel


class SequenceRoute:
    """Stands before what takes the requests for a name, where more than one model may have a sequence of it open."""

    def __init__(
        self,
        models: Sequence[Keeps],
        submit: Callable[[InFlightRequest], None],
        split: TrafficSplit | None = None,
    ) -> None:
        """submit: takes what belongs to no open sequence; raises where nothing does. split: of a rollout, which counts."""
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
        """Return the model that has a sequence open; None where none has."""
        found, latest = None, 0
        for model in self._models:
            begun = model.sequence_begun(identifier)
            if begun > latest:
                found, latest = model, begun
        return found
