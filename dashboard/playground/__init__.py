"""Trying a model: the form made from its signature, the labels of its classes, and REST that passes a request on to the
bundled server. It imports `configuration` and what is below. People and programs call it, no other room does."""
