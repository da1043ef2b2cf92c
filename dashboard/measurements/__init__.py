"""Benchmarks of a version: a job runs the load generator against the bundled server or a server of its own, and keeps the
figures of each load with their spread. Two measurements can be compared. The budget of a model is in `releases`, because making
a version live checks it. Only `overview` and the programs may import this room."""
