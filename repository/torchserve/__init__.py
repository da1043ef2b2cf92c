"""A TorchServe set-up: config.properties, snapshots, archives, and the settings that they give to a version of a model.

It may import `repository.config`, `repository.core` and `repository.files`. The server uses this package to serve the models
that its users register. The dashboard uses it to import a set-up of another server.
"""
