"""Measures what many servers, viewers, requests and models cost: `make bench-fleet`.

| module | does |
| --- | --- |
| `stand_in` | stand-ins for servers, all in one process; they speak the real control API and feed |
| `house` | PostgreSQL, a managed repository, the stand-ins as servers of production, and one `manage.py watch` |
| `costs` | measures what viewers, charts, requests and models cost the web process |
| `__main__` | measures at rest, through a change, and through a change while some servers hang, refuse and flap |
"""
