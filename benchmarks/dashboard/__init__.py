"""Measures the cost of the dashboard with 500 models and 10,000 releases, and with 50 people who have pages open.

    make bench-dashboard                                  # python -m benchmarks.dashboard --models 500 --viewers 50

Pages are measured on a database that is filled with rows. Viewers are measured on a complete `manage.py up` with the same
number of small models. All models are loaded, and a few get requests.

| module | does |
| --- | --- |
| `house` | runs the product with its models, a person who is signed in, and a light load |
| `filled` | runs the web process on a database with as many rows as after months of use |
| `pages` | measures every page: milliseconds as a browser sees them, CPU time, queries |
| `viewers` | opens WebSockets that follow live charts, and pages whose parts refresh themselves |
"""
