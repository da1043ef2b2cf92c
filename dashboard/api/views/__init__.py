"""One module per resource. A view decodes, calls a service or selector, and encodes."""
