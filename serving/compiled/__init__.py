"""Some modules may run compiled: those of a request's path, by `make compiled`, which takes mypyc and a C compiler.

The sources stay the truth, and everything runs without a build. A build belongs to exactly these sources under exactly this
Python: its folder is named by their fingerprint, so that a changed source runs interpreted until it is built again. The log and
the server's metadata say which it is. Imports `plugins` alone; programs call `loading.use` before all else.
"""
