"""Rollouts: they choose the arm of a model that answers a request without a version, and measure both arms.

A policy in the configuration (repository.config.traffic) says how requests are shared. May import `core`, `telemetry` and
`resources`, and not `models`, which makes a rollout of a policy and gives it the model of each arm.
"""
