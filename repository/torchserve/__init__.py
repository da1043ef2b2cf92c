"""What a TorchServe set-up says: config.properties, snapshots, and which settings a version of a model has by them.

May import `repository.config`, `repository.core` and `repository.files`. The server serves by it what its users register, the
dashboard takes over by it what ran elsewhere.
"""
