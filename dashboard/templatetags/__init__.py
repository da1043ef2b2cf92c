"""Template tags and filters that know nothing of the dashboard's rows: icons, states, numbers with their units. They import
`shared` alone. Templates of every room use them, and pages call the same functions where they make a sentence. Tags that ask
the database are in `overview.tags`."""
