"""Django looks for commands here, so `manage.py` finds `commands` through this package. The package itself is empty and imports
nothing."""
