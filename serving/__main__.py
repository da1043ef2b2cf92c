"""`python -m serving`: the inference server, with the modules of the path compiled where they have been built."""

from serving.compiled import loading


def main() -> None:
    loading.use()
    from serving.program import main as run

    run()


if __name__ == "__main__":
    main()
