"""Models: their list and states, loading, unloading and deleting, with pages and REST. The room imports `accounts`, `jobs`,
`metrics` and the rooms below. Configuration, versions, uploads and `watch` build on it."""
