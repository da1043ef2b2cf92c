"""Django's backend for PostgreSQL with a bound on the sessions of a process. The settings name it; it imports no module of the
dashboard, and no module calls it."""
