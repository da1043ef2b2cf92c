"""Template tags and filters that read no rows: icons, states, numbers with their units. The room imports only `shared`.
Templates of every room use the tags, and pages call the same functions to build sentences. Tags that query the database are in
`overview.tags`."""
