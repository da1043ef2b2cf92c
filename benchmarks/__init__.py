"""Measurements of time, memory and endurance. CONTRIBUTING.md lists the make targets, docs/benchmarks.md has the results.

comparison/    Slipway and other servers, in turns, on the same model: `make bench-peers`, `make bench-triton`
servers/       starts these servers, each in a separate environment
report/        writes docs/benchmarks.md and its charts from the results of a comparison
instructions/  CPU instructions of one request, which do not depend on other load: `make bench-instructions`
walks.py       calls, files and hops between files, for a request, a publication, a rollout step, a registered archive
stages/        the time of one request by stage, on the event loop: the table of docs/performance.md
loads/         load generators
dashboard/     pages with 500 models, and open pages with live charts: `make bench-dashboard`
fleet/         many servers under one watcher: `make bench-fleet`
soak/          a million requests while models change and processes are killed
"""
