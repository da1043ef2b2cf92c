"""Model instances: how they execute batches on a backend, where they are placed, their warm-up and readiness.

May import `backends`, `resources`, `extensions`, `cli` and `core`. Models make the instances, and schedulers give them batches.
"""
