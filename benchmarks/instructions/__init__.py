"""How many instructions does one request cost, on each path? Counted by valgrind, never timed; CI fails at 10 % more.

    make bench-instructions                 # count, and compare with recorded.json
    make bench-instructions RECORD=yes      # write recorded.json again, after an intended change
    make bench-instructions-compiled        # the same for the compiled modules, with recorded_compiled.json

| module | does |
| --- | --- |
| `cases` | the table of paths; a new path is a line |
| `models` | the models that get the requests: they compute next to nothing |
| `clients` | blocking clients that keep a fixed number of requests under way |
| `counting` | processes under valgrind, and the instructions that they ran |
| `under_valgrind` | the server, with replacements for system calls that valgrind lacks |
| `yardstick` | work in pure Python, used to scale figures of another build of Python |
| `record` | the recorded figures, and the comparison |

Valgrind shows programs the same processor on every machine (never with AVX-512), so that numpy, ONNX Runtime and the C library
run the same code everywhere, and it runs one thread at a time. The load of the machine does not change the counts.
"""
