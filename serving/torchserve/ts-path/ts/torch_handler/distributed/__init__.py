"""Handlers of models on several processes, which this server does not do: what imports one is told so."""
