"""A model's configuration: config.pbtxt and its JSON form, edits that keep a person's text, validation, own parameters.

May import `repository.core`. The dashboard edits and checks with it, the server reads, checks and decides what needs a reload.
"""
