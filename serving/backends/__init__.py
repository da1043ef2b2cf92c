"""The backends: a package for each backend, the packages that they share, and the table of their classes.

repository/config/backends.py lists the backends.

A backend imports serving.core, serving.extensions, serving.resources and the shared packages (base, channel, environments,
child), but no class of another backend. serving.models, serving.execution and serving.inspection use the table.
"""
