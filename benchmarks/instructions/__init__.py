"""Counts the CPU instructions of one request on each path, with valgrind. CI fails if a path needs 10 % more than recorded.

    make bench-instructions                 # count, and compare with recorded.json
    make bench-instructions RECORD=yes      # write recorded.json again, after an intended change
    make bench-instructions-compiled        # the same for the compiled modules, with recorded_compiled.json

| module | does |
| --- | --- |
| `cases` | the table of paths; a new path is a line |
| `models` | the models that get the requests, with almost no computation |
| `clients` | blocking clients with a fixed number of concurrent requests |
| `counting` | processes under valgrind, and the instructions that they ran |
| `under_valgrind` | the server, with replacements for system calls that valgrind lacks |
| `yardstick` | work in pure Python, used to scale figures of another build of Python |
| `record` | the recorded figures, and the comparison |

Valgrind emulates the same processor on every machine (without AVX-512), so numpy, ONNX Runtime and the C library run the same
code everywhere. It runs one thread at a time. Other load on the machine does not change the counts.
"""
