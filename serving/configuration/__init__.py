"""The configuration that a model version is loaded with: auto-completed from its files, given defaults, and checked.

May import the backends, `repositories`, `cli` and `core`. `serving.models` calls it before it builds a version, and
`serving.inspection` to show the configuration that a model file would get.
"""
