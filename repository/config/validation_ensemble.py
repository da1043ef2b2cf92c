"""Rules about ensembles: each tensor is written once, is read by a step, and can be computed from the inputs."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

from repository.core.errors import Problem

_NOT_FOR_ENSEMBLES = ("instance_group", "optimization", "model_warmup")


def ensemble(config: ModelConfig) -> Iterator[Problem]:
    scheduled = config.WhichOneof("scheduling_choice") == "ensemble_scheduling"
    if config.platform == "ensemble" and not scheduled:
        yield Problem("ensemble_scheduling", 'platform is "ensemble", but no steps are given')
    if not scheduled:
        return
    if config.platform not in ("", "ensemble"):
        yield Problem("ensemble_scheduling", f"an ensemble has platform \"ensemble\", not '{config.platform}'")
    given = {field.name for field, _ in config.ListFields()}
    for name in _NOT_FOR_ENSEMBLES:
        if name in given:
            yield Problem(name, "does not apply to an ensemble; set it on the models of its steps")
    if not config.ensemble_scheduling.step:
        yield Problem("ensemble_scheduling.step", "an ensemble needs at least one step")
        return
    problems = [*_steps(config)]
    yield from problems or _data_flow(config)


def _steps(config: ModelConfig) -> Iterator[Problem]:
    written: dict[str, int] = {}
    inputs = {tensor.name for tensor in config.input}
    for index, step in enumerate(config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{index}]"
        if not step.model_name:
            yield Problem(f"{field}.model_name", f"step {index} names no model")
        elif step.model_name == config.name and not step.model_namespace:
            yield Problem(f"{field}.model_name", f"step {index} is the ensemble itself")
        if step.model_version < -1:  # an absent number reads as 0
            yield Problem(
                f"{field}.model_version", f"expected a version, or -1 for the latest, not {step.model_version}"
            )
        for name in ("input_map", "output_map"):
            if not getattr(step, name):
                yield Problem(f"{field}.{name}", f"step {index} ('{step.model_name}') maps no tensor")
        for key, tensor in sorted(step.output_map.items()):
            if tensor in written:
                yield Problem(
                    f'{field}.output_map["{key}"]', f"step {written[tensor]} writes tensor '{tensor}' already"
                )
            elif tensor in inputs:
                yield Problem(f'{field}.output_map["{key}"]', f"tensor '{tensor}' is an input of the ensemble")
            written[tensor] = index


def _data_flow(config: ModelConfig) -> Iterator[Problem]:
    steps = config.ensemble_scheduling.step
    known, waiting = _run(config)
    written = {tensor for step in steps for tensor in step.output_map.values()}
    for index in sorted(waiting):
        yield from _unreachable(index, steps[index], known, written)
    yield from _ends(config, written)


def _run(config: ModelConfig) -> tuple[set[str], set[int]]:
    """Return the tensors that exist when no further step can run, and the steps that could not run."""
    missing = [set(step.input_map.values()) for step in config.ensemble_scheduling.step]
    readers: dict[str, list[int]] = {}
    for index, tensors in enumerate(missing):
        for tensor in tensors:
            readers.setdefault(tensor, []).append(index)
    known: set[str] = set()
    arriving = [tensor.name for tensor in config.input]
    waiting = set(range(len(missing)))
    ready = [index for index, tensors in enumerate(missing) if not tensors]
    while arriving or ready:
        for tensor in arriving:
            for index in readers.get(tensor, ()) if tensor not in known else ():
                missing[index].discard(tensor)
                if not missing[index]:
                    ready.append(index)
            known.add(tensor)
        waiting.difference_update(ready)
        arriving = [tensor for index in ready for tensor in config.ensemble_scheduling.step[index].output_map.values()]
        ready = []
    return known, waiting


def _unreachable(index: int, step: ModelEnsembling.Step, known: set[str], written: set[str]) -> Iterator[Problem]:
    for key, tensor in sorted(step.input_map.items()):
        if tensor in known:
            continue
        why = "only a step that waits for this one writes it" if tensor in written else "nothing writes it"
        field = f'ensemble_scheduling.step[{index}].input_map["{key}"]'
        yield Problem(field, f"step {index} ('{step.model_name}') reads tensor '{tensor}', but {why}")


def _ends(config: ModelConfig, written: set[str]) -> Iterator[Problem]:
    steps = config.ensemble_scheduling.step
    read = {tensor for step in steps for tensor in step.input_map.values()}
    outputs = {tensor.name for tensor in config.output}
    for index, tensor in enumerate(config.input):
        if tensor.name not in read:
            yield Problem(f"input[{index}].name", f"no step reads input '{tensor.name}'")
    for index, tensor in enumerate(config.output):
        if tensor.name not in written:
            yield Problem(f"output[{index}].name", f"no step writes output '{tensor.name}'")
    for index, step in enumerate(steps):
        for key, tensor in sorted(step.output_map.items()):
            if tensor not in read and tensor not in outputs:
                field = f'ensemble_scheduling.step[{index}].output_map["{key}"]'
                yield Problem(field, f"nothing reads tensor '{tensor}'")
