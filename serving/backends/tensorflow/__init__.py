"""The TensorFlow backend, whose models always run in child processes.

It imports serving.backends.base, serving.backends.child, serving.backends.environments and serving.core. Only the child imports
tensorflow. The table of backends names this backend; the server and the child use it.
"""
