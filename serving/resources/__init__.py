"""The resources that models of one server share: memory and budgets, response cache, rate limiter, cores, custom metrics.

This package may import `core`, `cli` and `extensions`. ModelRepositoryManager collects the resources in one `Runtime` for
models, schedulers and backends. Frontends count the bytes of the requests that they hold in the request memory.
"""
