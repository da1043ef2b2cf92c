"""Handlers of models on several processes, which this server does not support: an import raises an error that says so."""
