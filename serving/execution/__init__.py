"""Model instances: the thread that executes batches on a backend, where instances are placed, their warm-up and readiness.

May import `backends`, `resources`, `extensions`, `cli` and `core`. Models make the instances, and schedulers give them batches.
"""
