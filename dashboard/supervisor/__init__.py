"""The parts of `manage.py up`: preparation, the watched processes, and a guardian that outlives them. The room imports every
room except `watch`. The commands call it, and each process that starts asks `installation`.

preflight   checks before anything starts (lock, ports)
installation refuses a machine with other keys or another shared folder
setup       migrations, administrator, examples, the bundled server's row
commands    the command lines of the four processes
process     one child process: start, wait, stop, log
probes      ask a process whether it answers
backoff     the delays before restarts of a process that keeps ending
readiness   waits until the wanted models are loaded
supervisor  starts, watches and restarts the processes; stops them in order
guardian    ends the remaining processes after `up` itself was killed
recorder    writes the events as rows that pages read
"""
