"""A Python model whose requests wait inside execute while the gate is shut."""

from pathlib import Path

from tests.support.model_factory import python_model, tensors_text
from tests.support.serving_process import wait_until


class GatedModel:
    """INPUT0 FP32 [1] -> OUTPUT0 the same, while it is open. `folder` is where model and test meet."""

    def __init__(
        self, repository: Path, folder: Path, name: str = "gated", max_batch_size: int = 1, extra: str = ""
    ) -> None:
        self.name = name
        self.repository = repository
        self._folder = folder / f"{name}-gate"
        self._folder.mkdir()
        source = f"""
            import pathlib
            import time
            import triton_python_backend_utils as pb_utils

            FOLDER = pathlib.Path({str(self._folder)!r})

            class TritonPythonModel:
                def execute(self, requests):
                    with (FOLDER / "began").open("a") as began:
                        began.writelines(f"{{request.request_id()}}\\n" for request in requests)
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

    def began(self) -> list[str]:
        """The ids of the requests that execute has been given, in their order."""
        path = self._folder / "began"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, *ids: str) -> None:
        wait_until(lambda: set(ids) <= set(self.began()), what=f"the execution of requests {ids}")

    def open(self) -> None:
        (self._folder / "open").touch()

    def shut(self) -> None:
        """Once every request has been answered: the next ones wait again, and what began is forgotten."""
        for path in self._folder.iterdir():
            path.unlink()
