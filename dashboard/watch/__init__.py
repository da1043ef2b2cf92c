"""The parts of `manage.py watch`, the process that acts without a request. The room imports every room except `supervisor`;
only the command calls it.

plan              compares desired with actual state, and plans loads and unloads (no I/O)
missing_versions  versions that should be served and whose folders somebody moved
reconciler        executes the plan on one server, repeatedly
discovery         looks up the servers of environments by DNS name or Kubernetes service
rollout_watch     advances rollouts according to the server's reports
collector         stores the live feed of one server as history
together          what is done once for all servers, such as reading what they should serve
periodic          expiry, lost jobs, pruning, repairs
lease             lets one of several watchers lead
watcher           runs all of these
"""
