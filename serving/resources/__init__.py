"""The resources that models of one server share: memory and budgets, response cache, rate limiter, cores, custom metrics.

May import `core`, `cli` and `extensions`. ModelRepositoryManager makes one `Runtime` of them for models, schedulers and
backends; frontends take their share of the request memory.
"""
