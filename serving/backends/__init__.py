"""The backends: a folder for each one, the rooms that they share, and the table of their classes.

repository/config/backends.py declares which backends there are.

A backend imports serving.core, serving.extensions, serving.resources and the shared rooms (base, channel, environments,
child), and no other backend's class. serving.models, serving.execution and serving.inspection call the table.
"""
