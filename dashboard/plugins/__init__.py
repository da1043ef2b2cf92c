"""What packages add to the dashboard beside its own rooms: readers of archives, flags of the server, protocols of clients.

`table.py` names the packages; each is a Django app that declares what it adds in its module `plugin`, as a `Plugin`. A package
that is not there adds nothing, and no other room misses it.
"""
