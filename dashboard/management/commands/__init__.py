"""The commands of `manage.py`: `up` and `watch`, each a thin start of the room that does the work. They may import every
room. A person, systemd or `up` itself runs them."""
