"""Plugins: packages that add flags, sources of models, frontends, protocols and log formats to the server.

`table.py` lists the packages. The module `plugin` of each package declares its additions, as a `Plugin`. A listed package that
does not exist adds nothing, and no other package needs it. `serving.plugins` imports only the standard library, and every
package may import it.
"""
