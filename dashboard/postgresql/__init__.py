"""Django's backend for PostgreSQL with a pool of sessions, and with limits on every wait. The settings name it. It imports no
module of the dashboard.

base        the backend: takes sessions out of the pool of the process and gives them back
session     one session: limits how long it waits for an answer
presence    finds out whether the database answers at all
references  lets the database itself delete rows that refer to a deleted one
"""
