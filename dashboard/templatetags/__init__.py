"""Template tags and filters that read no rows: icons, states, numbers with their units. They import `shared` alone. Templates
of every room use them, and pages call the same functions to build sentences. Tags that query the database are in
`overview.tags`."""
