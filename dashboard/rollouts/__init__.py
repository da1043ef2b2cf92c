"""Rollouts, which move requests from one version of a model to another by a plan: their start, steps, promotion and rollback,
with figures, pages and REST. `watch` takes steps automatically. The room imports `configuration`, `metrics` and
the rooms below. The states are in `releases.rollout_states`, because any release may end a rollout."""
