"""Sources are read by their syntax trees on several threads at once, in the dashboard and the server: none disturbs another."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from repository.config.text import unquoted
from repository.files.data_files import DataFiles
from repository.torchserve import model_archive
from serving.inspection.python_model import read_python_model
from serving.inspection.report import inspect
from tests.support.torchserve_archives import archive

LINES = "def of(a):\n    return send_intermediate_predict_response(a, [1, 2, {'a': (a + 1) * 2}])\n" * 100
ROUNDS = 20


def test_five_threads_read_sources_at_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text(LINES)
    model = tmp_path / "model.py"
    model.write_text(f"class TritonPythonModel:\n    def execute(self, requests):\n        pass\n{LINES}")
    made = archive(tmp_path / "cats.mar", handler=f"def handle(data, context):\n    return data\n{LINES}")
    reads: list[Callable[[], object]] = [
        lambda: DataFiles().has(notes.name, notes),
        lambda: read_python_model(model).problems,
        lambda: model_archive.read_archive(made).streams,
        lambda: inspect(made)["problems"],
        lambda: [unquoted('"key"') for _ in range(100)],
    ]
    alone = [read() for read in reads]
    found: list[object] = []

    def work(read: Callable[[], object], expected: object) -> None:
        try:
            found.extend([] if read() == expected else [read] for _ in range(ROUNDS))
        except Exception as error:
            found.append(error)

    with changing_threads():
        threads = [threading.Thread(target=work, args=pair) for pair in zip(reads, alone, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one for one in found if one] == []


@contextmanager
def changing_threads() -> Iterator[None]:
    """Let another thread go on amid whatever makes objects: the garbage collector calls Python often, which gives way."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(500, 1000, 1000)
    gc.callbacks.append(_give_way)
    try:
        yield
    finally:
        gc.callbacks.remove(_give_way)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def _give_way(phase: str, info: dict[str, int]) -> None:
    for _ in range(50):
        pass
