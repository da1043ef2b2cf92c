"""The interface of backends, and their shared parts: reading parameters, completing a configuration from a model's file.

It imports serving.core, serving.extensions.ragged and serving.resources.runtime. Each backend and the table of backends call
it, and so do the rooms above that load models: execution, models and inspection.
"""
