"""`manage.py import_torchserve`."""
