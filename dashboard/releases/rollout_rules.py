"""Rules for releases that are made while a rollout splits a model's requests: they keep its policy and its arms."""

from dashboard.models import Model, Rollout
from dashboard.releases.rollout_states import under_way
from dashboard.shared.exceptions import Conflict
from repository.config.document import Document
from repository.core.json_types import JsonObject


def traffic_kept(model: Model, before: Document, document: Document) -> Document:
    """Return a document that will replace `before`, with the present weight of the rollout under way.

    Raises Conflict if the document changes the policy of the rollout, or has the policy of a rollout that is over.
    """
    rollout, now, given = under_way(model), before.traffic, document.traffic
    if rollout is None:
        if given is not None and given != now and Rollout.objects.filter(name=str(given.get("rollout"))).exists():
            raise Conflict(f"slipway.traffic is that of rollout {given['rollout']}, which is over: take it out")
        return document
    # The document may have been edited while the rollout took a step, so the weights of earlier steps are accepted.
    taken = [one["weight"] for one in rollout.plan["steps"][: rollout.step + 1]]
    if given is None or now is None or _but_weight(given) != _but_weight(now) or given.get("weight") not in taken:
        raise Conflict(
            f"slipway.traffic is decided by rollout {rollout.name}, which is under way: leave it as it is, or promote or "
            "abort the rollout first"
        )
    refuse_other_default(model, before, document)
    return document.with_traffic(now)


def traffic_adopted(model: Model, before: Document, document: Document) -> Document:
    """Return a document written by hand, with the traffic policy that lets it be adopted during a rollout.

    The rollout's present policy is kept. If another version answers by default, the policy is removed, which ends the rollout.
    """
    rollout, given = under_way(model), document.traffic
    if rollout is None or given is None or given.get("rollout") != rollout.name:
        return document
    there = model.published_numbers()
    return document.with_traffic(before.traffic if before.answers(there) == document.answers(there) else None)


def refuse_other_default(model: Model, before: Document, document: Document) -> None:
    """Raise Conflict if another version would become the stable one of the rollout under way."""
    rollout, there = under_way(model), model.published_numbers()
    if rollout is not None and before.answers(there) != document.answers(there):
        raise Conflict(
            f"{rollout.stable_words} is the stable one of rollout {rollout.name}, which is under way: promote or abort it "
            "before another version answers by default"
        )


def same_but_weight(one: Document, other: Document) -> bool:
    """Return whether two texts differ at most in the weight of the same rollout. A rollout's steps do not count as edits."""
    first, second = one.traffic, other.traffic
    if first is not None and second is not None and first.get("rollout") == second.get("rollout"):
        one = one.with_traffic(second)
    return one.same_text(other)


def _but_weight(policy: JsonObject) -> JsonObject:
    return {name: value for name, value in policy.items() if name != "weight"}
