"""What `manage.py watch` is made of: the one process that acts by itself. It imports every room but `supervisor`; only the
command calls it.

plan        desired state against actual state -> what to load and unload (no I/O)
reconciler  carries the plan out on one server, again and again
missing_versions  versions that should be served and whose folders are gone
collector   the live feed of one server into metrics history
clocks      what happens from time to time: expiry, lost jobs, pruning
watcher     all of these together
"""
