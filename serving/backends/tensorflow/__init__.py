"""The TensorFlow backend, whose models always run in processes of their own.

It imports serving.backends.base, serving.backends.child, serving.backends.environments and serving.core; tensorflow is imported
in the child alone. The table of backends makes it, in the server and in the child.
"""
