"""Uploads, from files in a browser to a published version: they are received in chunks (services), inspected (inspection),
reviewed (review) and published (publication). Recipes that take their files (offers) convert them (conversion). Each step is
a transition in `states`. The bundled examples are published in the same way. Files that can run code need a right, which is
checked when they are announced (services), when they have been arranged (inspection), when a recipe shall run them (conversion)
and when they are published (configuration.needs).

The room imports `versions` and the rooms below. The overview lists open uploads, `watch` recovers and expires uploads, and
`up` publishes the examples."""
