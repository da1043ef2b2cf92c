"""How many instructions does one request cost, on each path? Counted by valgrind, never timed; CI fails at 10 % more.

    make bench-instructions                 # count, and compare with recorded.json
    make bench-instructions RECORD=yes      # write recorded.json anew, for a change that is meant
    make bench-instructions-compiled        # the same of the compiled modules, with recorded_compiled.json

| module | does |
| --- | --- |
| `cases` | the table of paths; a new one is a line |
| `models` | the models that are asked: they compute next to nothing |
| `clients` | blocking clients that keep a fixed number of requests under way |
| `counting` | processes under valgrind, and the instructions that they have run |
| `under_valgrind` | the server, with what valgrind itself lacks |
| `yardstick` | work of Python's own, by which figures of another build of Python are scaled |
| `record` | the recorded figures, and the comparison |

Valgrind shows every machine the same processor (no AVX-512, whatever there is), so that numpy, ONNX Runtime and the C library
take the same code everywhere, and it runs one thread at a time. A machine that is busy changes nothing that is counted.
"""
