"""A soak of a whole `manage.py up`: a million requests of every kind under changes and kills; every failure has a reason.

    python -m benchmarks.soak --requests 1000000 --folder soak-results

| module | does |
| --- | --- |
| `models` | the models that are asked, and what each must answer |
| `load` | raw clients over HTTP, gRPC and gRPC streams, and a few stock ones, all in one thread |
| `dashboard` | what a person does meanwhile, through the REST API |
| `disturbances` | changes and kills, one after the other, and which failures each excuses |
| `record` | what was counted: kept in a file, so that a run can go on where it ended, and written as a page |
| `processes` | memory and file descriptors, by process |

A failure is expected when it came while something was killed that the request needed; all others are unexpected, and end
the program with status 1.
"""
