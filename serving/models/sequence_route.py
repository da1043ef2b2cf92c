"""Routes each request of a sequence to the model that has the sequence open, even if its name now means another version.

A name may come to mean another version in the middle of a sequence: an alias is reassigned, a release or a rollout's weight
chooses another version, or a version is replaced or retired. A model's scheduler knows its open sequences, even while the
model drains. A RemoteModel knows the open sequences on its server. If several models have the same correlation ID open, the
request goes to the sequence that began last.
"""

from collections.abc import Callable, Sequence

from serving.core.in_flight import InFlightRequest
from serving.models.model import Model
from serving.models.sleeping_model import SleepingModel
from serving.traffic.remotes.remote_model import RemoteModel
from serving.traffic.split import TrafficSplit

Keeps = Model | SleepingModel | RemoteModel


class SequenceRoute:
    """Used in front of the destination of a name if more than one model may have a sequence open under that name."""

    def __init__(
        self,
        models: Sequence[Keeps],
        submit: Callable[[InFlightRequest], None],
        split: TrafficSplit | None = None,
    ) -> None:
        """submit: takes requests that belong to no open sequence, and raises an error if no model serves. split: the split of a
        rollout, which counts the requests of open sequences."""
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
        """Return the model in which a sequence is open, or None if there is none."""
        found, latest = None, 0
        for model in self._models:
            begun = model.sequence_start_ns(identifier)
            if begun > latest:
                found, latest = model, begun
        return found
