"""Where Django looks for commands. It holds none itself and imports nothing. `manage.py` finds `commands` through it."""
