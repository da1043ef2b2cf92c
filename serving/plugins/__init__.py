"""What packages add to the server beside its own rooms: flags, sources of models, frontends, protocols, formats of the log.

`table.py` names the packages; each declares what it adds in its module `plugin`, as a `Plugin`. A package that is not there
adds nothing, and no other room misses it. It imports the standard library alone, and every room may ask it.
"""
