"""A model's configuration: config.pbtxt and its JSON form, edits that keep a person's text, validation, own parameters.

May import `repository.core`. The dashboard edits and checks configurations with this package. The server reads and checks them
with it, and decides which changes need a reload.
"""
