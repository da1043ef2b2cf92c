"""The interface of backends, and their shared parts: they read parameters, and complete configurations from model files.

It imports serving.core, serving.extensions.ragged and serving.resources.runtime. Each backend and the table of backends use it,
and so do the packages that load models: execution, models and inspection.
"""
