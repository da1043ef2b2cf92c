"""The child's link to the server: questions, streamed responses, and the errors that a model's code sees.

It imports serving.backends.channel, the standard library and numpy. The API that a model.py sees (pb_utils) and the stubs that
run a model call it.
"""
