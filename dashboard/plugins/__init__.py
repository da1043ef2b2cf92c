"""The parts that packages add to the dashboard's own rooms: readers of archives, flags of the server, protocols of clients.

`table.py` names the packages. Each is a Django app whose module `plugin` declares its parts as a `Plugin`. A package that is
not installed adds nothing, and no other room needs it.
"""
