"""Rollouts: which arm of a model answers a request that names no version, and what is measured of both arms.

A policy in the configuration (repository.config.traffic) says how requests are shared. May import `core`, `telemetry` and
`resources`, and not `models`, which makes a rollout of a policy and tells it how each arm takes a request.
"""
