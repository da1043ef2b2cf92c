"""Django looks for commands here: `manage.py` finds `commands` through this package. It holds none itself and imports
nothing."""
