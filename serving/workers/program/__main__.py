"""The program of a worker: `python -m serving.workers.program SETUP PARENT NAME`.

SETUP is a file descriptor with a pickled `Setup`. PARENT is the core's process id. NAME identifies the worker in process lists.
"""

from serving.compiled import loading


def main() -> None:
    loading.use()
    from serving.workers.program.worker import main as run

    run()


if __name__ == "__main__":
    main()
