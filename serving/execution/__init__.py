"""Model instances: their placement, warm-up and readiness, and the execution of batches on a backend.

This package may import `backends`, `resources`, `extensions`, `cli` and `core`. Models make the instances, and schedulers give
them batches.
"""
