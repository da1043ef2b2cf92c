"""Rollouts: requests move from one version of a model to another by a plan. Starting, steps, promotion, going back, with their
figures, pages and REST, and what `watch` does for them by itself. It imports `configuration`, `metrics` and what is below. The
states are drawn in `releases.rollout_states`, for any release may end a rollout."""
