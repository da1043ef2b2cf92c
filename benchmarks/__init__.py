"""Measurements of time, memory and endurance. CONTRIBUTING.md lists the make targets, docs/benchmarks.md has the results.

comparison/    Slipway and other servers, in turns, on the same model: `make bench-peers`, `make bench-triton`
servers/       starts those servers, each in an environment of its own
report/        writes docs/benchmarks.md and its pictures from the results of a comparison
instructions/  instructions of one request, which do not depend on the load of the machine: `make bench-instructions`
walks.py       calls, files and hops between files for a request, a publication, a step of a rollout, a registered archive
stages/        where the time of one request goes, on the event loop: the table of docs/performance.md
loads/         the requests and the programs that send them
dashboard/     pages with 500 models, and people who watch live charts: `make bench-dashboard`
soak/          a million requests while models change and processes are killed
"""
