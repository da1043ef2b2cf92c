"""Inspects a model file without serving it: its format, signature, problems, and a configuration for it.

This package may import `configuration`, the backends and `core`. `python -m serving.inspect` runs this package in a separate
process, which limits the time and memory that a hostile file can use.
"""
