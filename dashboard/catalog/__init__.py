"""The models: the managed repository as the settings place it, which versions are served, loading, unloading and deleting,
with the list of models, the pages of one and their REST. It imports `accounts`, `jobs`, `metrics` and what is below.
Configuration, versions, uploads and `watch` build on it."""
