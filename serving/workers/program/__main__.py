"""The program of a worker: `python -m serving.workers.program SETUP PARENT NAME`.

SETUP is a descriptor with a pickled `Setup`, PARENT the core's process id; NAME is for people who list the processes.
"""

from serving.compiled import loading


def main() -> None:
    loading.use()
    from serving.workers.program.worker import main as run

    run()


if __name__ == "__main__":
    main()
