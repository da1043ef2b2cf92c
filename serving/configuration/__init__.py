"""The configuration with which a model version is loaded: completed from the version's files and with defaults, and checked.

May import the backends, `repositories`, `cli` and `core`. `serving.models` calls this room before it builds a version, and
`serving.inspection` to show the configuration that a model file would get.
"""
