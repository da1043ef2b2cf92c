"""The interface of backends, and shared code that reads parameters and completes configurations from model files.

It imports serving.core, serving.extensions.ragged and serving.resources.runtime. Each backend and the table of backends use it,
and so do the packages that load models: execution, models and inspection.
"""
