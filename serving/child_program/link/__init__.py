"""The child's link to the server: questions, streamed responses, and the errors that a model's code sees.

It imports serving.backends.channel, the standard library and numpy. The API for a model.py (pb_utils) uses it, and so do the
stubs that run a model.
"""
