"""What is measured, by seconds, memory and endurance; CONTRIBUTING.md has the make targets, docs/benchmarks.md the results.

comparison/    other servers and this one, in turns, on the same model: `make bench-peers`, `make bench-triton`
servers/       how those servers are started, each in an environment of its own
report/        docs/benchmarks.md and its pictures, out of what a comparison left
instructions/  instructions of one request, which load does not sway: `make bench-instructions`
walks.py       calls, files and hops between files of one request, publication, step of a rollout, registered archive
stages/        where the time of one request goes, on the event loop: the table of docs/performance.md
loads/         the requests and the programs that send them
dashboard/     pages with 500 models, and people who watch live charts: `make bench-dashboard`
soak/          a million requests under changes and kills
"""
