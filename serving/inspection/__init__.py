"""Inspects a model file without serving it: its format, signature, problems, and a configuration for it.

May import `configuration`, the backends and `core`. `python -m serving.inspect` runs this room in a process of its own, which
limits the time and memory that a hostile file can use.
"""
