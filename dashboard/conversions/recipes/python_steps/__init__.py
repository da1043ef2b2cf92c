"""Models in Python that a recipe copies beside a converted one. They run in the inference server, and import nothing of
Slipway."""
