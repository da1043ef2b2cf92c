"""What `python -m serving.inspect` is made of: telling formats apart, reading model.py as text, writing the report."""
