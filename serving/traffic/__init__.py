"""Rollouts: they divide the requests that name no version between two arms, stable and candidate, and measure both arms.

The configuration has the policy of a rollout (repository.config.traffic). May import `core`, `telemetry` and `resources`, but
not `models`: that room creates rollouts and gives them the models of the arms.
"""
