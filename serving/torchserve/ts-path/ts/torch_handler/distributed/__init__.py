"""Handlers of models on several processes. This server does not support such models: an import raises an error."""
