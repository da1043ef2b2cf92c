"""The commands of `manage.py`; each one starts the room that does the work. `up` also prints the events, the addresses and the
first password. Commands may import every room. A person, systemd or `up` itself runs them."""
