"""Handlers of models on several processes. This server does not support them: an import of these modules raises an error."""
