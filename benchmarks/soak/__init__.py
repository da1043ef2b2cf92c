"""A soak test of a complete `manage.py up`: a million requests of every kind while it is changed and processes are killed.

    python -m benchmarks.soak --requests 1000000 --folder soak-results

| module | does |
| --- | --- |
| `models` | the models that get the requests, and the answers that each must give |
| `load` | raw clients over HTTP, gRPC and gRPC streams, and a few stock clients, all in one thread |
| `dashboard` | the actions of a person, through the REST API |
| `disturbances` | changes and kills, one after the other, and the failures that each excuses |
| `record` | the counts, in a file from which an interrupted run continues, and as a page |
| `processes` | memory and file descriptors, by process |

A failure is expected if a process that the request needed was killed at that time. After any other failure the program ends
with status 1.
"""
