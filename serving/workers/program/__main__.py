"""The program of a worker: `python -m serving.workers.program SETUP PARENT NAME`.

SETUP is a file descriptor with a pickled `Setup`. PARENT is the core's process id. NAME identifies the worker in process lists.
"""

from repository.core.imports import without_blas_threads, without_garbage
from serving.compiled import loading


def main() -> None:
    loading.use()
    with without_garbage(), without_blas_threads():
        from serving.workers.program.worker import main as run
    run()


if __name__ == "__main__":
    main()
