"""Django's backend for PostgreSQL with a bound on the sessions of a process. The settings name it; it imports nothing of the
dashboard's, and no module calls it."""
