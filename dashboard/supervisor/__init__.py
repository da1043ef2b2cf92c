"""What `manage.py up` is made of: preparation, four watched processes, and a guardian that outlives them. It imports every
room but `watch`; only the commands call it.

preflight   what must be true before anything starts (lock, ports)
setup       migrations, administrator, examples, the bundled server's row
commands    the command lines of the four processes
backoff     how long a process waits that keeps ending
process     one child: start, wait, stop, its log
probes      whether a process answers
readiness   whether the models that should be loaded are
supervisor  starts, watches and restarts them; stops them in order
guardian    ends what is left when `up` itself is killed
recorder    what happened, as rows that pages read
"""
