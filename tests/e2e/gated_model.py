"""A Python model whose requests wait inside execute until the test opens the gate."""

from pathlib import Path

from tests.model_factory import python_model, tensors_text
from tests.serving_process import wait_until


class GatedModel:
    """INPUT0 FP32 [1] -> OUTPUT0 the same, once `open()` was called. `folder` is where model and test meet."""

    def __init__(
        self, repository: Path, folder: Path, name: str = "gated", max_batch_size: int = 1, extra: str = ""
    ) -> None:
        self.name = name
        self._folder = folder / f"{name}-gate"
        self._folder.mkdir()
        source = f"""
            import pathlib
            import time
            import triton_python_backend_utils as pb_utils

            FOLDER = pathlib.Path({str(self._folder)!r})

            class TritonPythonModel:
                def execute(self, requests):
                    for request in requests:
                        (FOLDER / f"began-{{request.request_id()}}").touch()
                    while not (FOLDER / "open").exists():
                        time.sleep(0.005)
                    return [
                        pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                        for request in requests
                    ]
        """
        tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
        config = f'name: "{name}" backend: "python" max_batch_size: {max_batch_size} {tensors} {extra}'
        python_model(repository, name, source, config)

    def began(self) -> set[str]:
        """The ids of the requests that execute has been given."""
        return {path.name.removeprefix("began-") for path in self._folder.glob("began-*")}

    def wait_for(self, *ids: str) -> None:
        wait_until(lambda: set(ids) <= self.began(), 30, f"the execution of requests {ids}")

    def open(self) -> None:
        (self._folder / "open").touch()
