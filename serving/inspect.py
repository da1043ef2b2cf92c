"""`python -m serving.inspect PATH [--name NAME] [--config FILE]`: describe a model file, as one JSON object on standard output.

PATH is a model file, a version folder, or a model's folder with config.pbtxt. The exit status is 0 if PATH could be
identified, even if the JSON lists mistakes as `problems`, and 1 otherwise. The process limits its own memory, CPU seconds and
written bytes, so that a hostile file cannot exhaust the machine.
"""

import argparse
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from repository.core.imports import without_blas_threads, without_garbage

_CPU_SECONDS = 300
_HEAP_BYTES = 16 << 30  # private memory; mapped files do not count
_WRITTEN_BYTES = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m serving.inspect", description="Say what a model file is, as JSON.")
    parser.add_argument("path", type=Path, help="a model file, a version folder or a model's folder")
    parser.add_argument("--name", default="", help="the model's name, where the configuration gives none")
    parser.add_argument("--config", type=Path, help="a config.pbtxt to check and complete")
    options = parser.parse_args(arguments)
    limit_resources()
    with _Output() as output:
        with without_garbage(), without_blas_threads():
            from serving.core.errors import ServingError
            from serving.inspection.report import inspect

        try:
            answer = inspect(options.path, options.name, options.config)
        except ServingError as error:
            print(error.message, file=sys.stderr)
            return 1
        output.write(json.dumps(answer) + "\n")
    return 0


def limit_resources() -> None:
    """Lower this process's own limits, and never raise a limit that its parent has set."""
    wanted = {
        resource.RLIMIT_CPU: _CPU_SECONDS,
        resource.RLIMIT_DATA: _HEAP_BYTES,
        resource.RLIMIT_FSIZE: _WRITTEN_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in wanted.items():
        soft, hard = resource.getrlimit(limit)
        bounds = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
        resource.setrlimit(limit, (min([value, *bounds]), hard))


class _Output:
    """Keeps standard output for the answer. Text that libraries print meanwhile goes to standard error."""

    def __enter__(self) -> "_Output":
        self._answer = os.dup(1)
        os.dup2(2, 1)
        return self

    def write(self, text: str) -> None:
        with os.fdopen(os.dup(self._answer), "w") as stream:
            stream.write(text)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        os.dup2(self._answer, 1)
        os.close(self._answer)


if __name__ == "__main__":
    sys.exit(main())
