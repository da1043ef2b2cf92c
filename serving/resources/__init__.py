"""What the models of one server share: memory and its budgets, the response cache, the rate limiter, cores, custom metrics.

May import `core`, `cli` and `extensions`. ModelRepositoryManager makes one `Runtime` of them, which models, schedulers and
backends are given; frontends take their share of the request memory.
"""
