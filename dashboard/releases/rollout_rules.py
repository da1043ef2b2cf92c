"""What other releases may not change while a rollout shares a model's requests: its policy, and which versions are its arms."""

from dashboard.models import Model, Rollout
from dashboard.releases.rollout_states import under_way
from dashboard.releases.texts import aliases_in, answering, chosen_versions, traffic_in, with_traffic
from dashboard.shared.exceptions import Conflict
from repository.core.json_types import JsonObject


def traffic_kept(model: Model, before: str, text: str) -> str:
    """Return a text that is to take the place of `before`, with the present weight of the rollout under way.

    Conflict: it changes what the rollout decides, or brings back the policy of one that is over.
    """
    rollout, now, given = under_way(model), traffic_in(before), traffic_in(text)
    if rollout is None:
        if given is not None and given != now and Rollout.objects.filter(name=str(given.get("rollout"))).exists():
            raise Conflict(f"slipway.traffic is that of rollout {given['rollout']}, which is over: take it out")
        return text
    # It may have been edited while the rollout took a step.
    taken = [one["weight"] for one in rollout.plan["steps"][: rollout.step + 1]]
    if given is None or now is None or _but_weight(given) != _but_weight(now) or given.get("weight") not in taken:
        raise Conflict(
            f"slipway.traffic is decided by rollout {rollout.name}, which is under way: leave it as it is, or promote or "
            "abort the rollout first"
        )
    refuse_other_default(model, before, text)
    return with_traffic(text, now)


def traffic_adopted(model: Model, before: str, text: str) -> str:
    """Return a text that was written by hand as it can be adopted while a rollout is under way.

    What the rollout decides stays where the text still has its policy. Where another version answers by default, requests are
    shared no more: that ends the rollout, as taking the policy out does.
    """
    rollout, given = under_way(model), traffic_in(text)
    if rollout is None or given is None or given.get("rollout") != rollout.name:
        return text
    return with_traffic(text, traffic_in(before) if _answers(model, before) == _answers(model, text) else None)


def refuse_other_default(model: Model, before: str, text: str) -> None:
    """Raise Conflict where another version would become the stable one of the rollout under way."""
    rollout = under_way(model)
    if rollout is not None and _answers(model, before) != _answers(model, text):
        raise Conflict(
            f"{rollout.stable_words} is the stable one of rollout {rollout.name}, which is under way: promote or abort it "
            "before another version answers by default"
        )


def same_but_weight(one: str, other: str) -> tuple[str, str]:
    """Return two texts with the same weight, where they have the policy of one rollout: steps of it are no edits."""
    first, second = traffic_in(one), traffic_in(other)
    if first is None or second is None or first.get("rollout") != second.get("rollout"):
        return one, other
    return with_traffic(one, second), other


def _answers(model: Model, text: str) -> int:
    return answering(chosen_versions(model, text), aliases_in(text))


def _but_weight(policy: JsonObject) -> JsonObject:
    return {name: value for name, value in policy.items() if name != "weight"}
