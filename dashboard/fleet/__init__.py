"""Environments (dev, staging, production) and their servers: added, checked, changed and removed, and what each should serve,
with pages and REST. The room imports `catalog`, `kubernetes`, `releases`, `servers` and the rooms below. `watch` calls
`discovery`."""
