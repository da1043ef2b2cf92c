"""`python -m serving`: the inference server. It uses compiled modules for the path of a request if they have been built."""

import gc
import os

from serving.compiled import loading


def main() -> None:
    # Read when gRPC is imported. Without this setting, gRPC logs a line for every failed handshake with another server.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    loading.use()
    gc.disable()  # importing leaves no garbage, and what is imported stays
    from serving.program import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
