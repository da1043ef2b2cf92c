"""`python -m serving`: the inference server. It uses compiled modules for the path of a request if they have been built."""

import os

from repository.core.imports import without_blas_threads, without_garbage
from serving.compiled import loading


def main() -> None:
    # Read when gRPC is imported. Without this setting, gRPC logs a line for every failed handshake with another server.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    loading.use()
    with without_garbage(), without_blas_threads():
        from serving.program import main as run
    run()


if __name__ == "__main__":
    main()
