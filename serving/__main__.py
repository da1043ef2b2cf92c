"""`python -m serving`: the inference server, with the modules of the path compiled where they have been built."""

import os

from serving.compiled import loading


def main() -> None:
    # gRPC reads it when it is imported; it writes a line for every handshake that fails with a model on another server.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    loading.use()
    from serving.program import main as run

    run()


if __name__ == "__main__":
    main()
