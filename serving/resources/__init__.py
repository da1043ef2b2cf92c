"""The resources that models of one server share: memory and budgets, response cache, rate limiter, cores, custom metrics.

This package may import `core`, `cli` and `extensions`. ModelRepositoryManager puts the resources into one `Runtime` for models,
schedulers and backends; frontends use the request memory.
"""
