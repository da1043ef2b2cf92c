"""Who wants an ensemble wants the models of its steps: a server loads them with it, and nobody unloads them meanwhile."""

from collections.abc import Callable

import pytest

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_load, model_unload
from dashboard.models import AuditEntry, Model, Upload, Version
from dashboard.uploads.publication import upload_publish
from dashboard.versions.services import release_promote
from repository.config.document import Document
from tests.dashboard.conftest import version_from

STEP = 'step {{ model_name: "{0}" input_map {{ key: "x" value: "{1}" }} output_map {{ key: "y" value: "{2}" }} }}'


def ensemble(*steps: str) -> bytes:
    """A config.pbtxt that sends x through the steps one after the other."""
    names = ["x", *(f"t{number}" for number in range(1, len(steps))), "y"]
    rows = [STEP.format(step, names[number], names[number + 1]) for number, step in enumerate(steps)]
    tensors = "".join(f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}\n' for kind, name in KINDS)
    return f'platform: "ensemble"\nmax_batch_size: 8\n{tensors}ensemble_scheduling {{ {" ".join(rows)} }}'.encode()


KINDS = (("input", "x"), ("output", "y"))


@pytest.fixture
def flow(published: Callable[..., Version], inspected: Callable[..., Upload], actor: Actor) -> Callable[..., Version]:
    """flow("outer", "first", "second"): a published ensemble of published models, none of them loaded."""

    def make(name: str, *steps: str, load: bool = False) -> Version:
        for step in steps:
            if not Model.objects.filter(name=step).exists():
                published(step)
        upload = inspected({"config.pbtxt": ensemble(*steps)}, name)
        return version_from(upload_publish(upload=upload, actor=actor, make_live=load, load=load))

    return make


def wanted() -> set[str]:
    return set(Model.objects.filter(desired_state="loaded").values_list("name", flat=True))


def test_loading_an_ensemble_wants_its_steps_and_those_of_its_ensembles(
    flow: Callable[..., Version], actor: Actor
) -> None:
    flow("inner", "first", "second")
    outer = flow("outer", "inner", "third").model
    assert wanted() == set()
    before = Model.objects.get(name="first").generation
    model_load(model=outer, actor=actor)
    assert wanted() == {"outer", "inner", "first", "second", "third"}
    assert Model.objects.get(name="first").generation == before + 1
    said = AuditEntry.objects.filter(action="model.load").values_list("summary", flat=True)
    assert sorted(said)[:2] == ["Load first, which outer calls", "Load inner, which outer calls"]


def test_a_step_that_is_wanted_already_is_left_alone(flow: Callable[..., Version], actor: Actor) -> None:
    outer = flow("outer", "first", "second").model
    model_load(model=Model.objects.get(name="first"), actor=actor)
    before = Model.objects.get(name="first").generation
    model_load(model=outer, actor=actor)
    assert Model.objects.get(name="first").generation == before


def test_a_step_that_a_person_unloads_stays_unloaded(flow: Callable[..., Version], actor: Actor) -> None:
    outer = flow("outer", "first", "second", load=True).model
    model_unload(model=Model.objects.get(name="first"), actor=actor)
    assert wanted() == {"outer", "second"}
    model_unload(model=outer, actor=actor)
    assert wanted() == {"second"}


def test_publishing_and_making_live_want_the_steps_too(flow: Callable[..., Version], actor: Actor) -> None:
    flow("outer", "first", load=True)
    assert wanted() == {"outer", "first"}
    second = flow("outer", "second")
    assert wanted() == {"outer", "first"}
    release_promote(version=second, actor=actor, document=Document.read(ensemble("second").decode()))
    assert wanted() == {"outer", "first", "second"}
