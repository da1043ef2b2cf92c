"""The commands of `manage.py`: `up` and `watch`, each a thin start of the room that does the work. `up` also says on the
terminal what happens, with the addresses and the first password. They may import every room. A person, systemd or `up` itself
runs them."""
