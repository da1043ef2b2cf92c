"""The playground of a model: a form made from its signature, the labels of its classes, and REST routes that forward requests
to the bundled server. The room imports `configuration` and the rooms below; no other room calls it."""
