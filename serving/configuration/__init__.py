"""Completes a model configuration from the version's files and from defaults, and checks it, before the version is loaded.

May import the backends, `repositories`, `cli` and `core`. `serving.models` calls this room before it builds a version, and
`serving.inspection` to show the configuration that a model file would get.
"""
