"""What `manage.py doctor` and its page look at. A check is a function that yields a sentence for each fault.

check       runs the checks, and says which could not be made
run         makes them in a process of their own, for pages and REST
table       the checks, a line each
settings    the environment's variables, also when they are so wrong that nothing else starts
machine     folders, disk, ports, packages, static files, GPU
database    whether it answers, its tables, clock and sessions; the keys and the folder of the installation
processes   processes, the queue
serving     inference servers, models, and the files that the database knows
"""
