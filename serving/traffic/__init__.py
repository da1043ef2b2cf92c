"""Rollouts: they choose the arm of a model that answers a request that names no version, and measure both arms.

A policy in the configuration (repository.config.traffic) says how requests are divided between the arms. May import `core`,
`telemetry` and `resources`, but not `models`: that room makes a rollout from a policy and gives it the model of each arm.
"""
