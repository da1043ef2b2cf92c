"""The backends: a folder for each of those that run models, the rooms that they share, and the table that names them.

A backend imports serving.core, serving.extensions, serving.resources and the shared rooms (base, channel, environments,
child), and no other backend's class. serving.models, serving.execution and serving.inspection call the table.
"""
