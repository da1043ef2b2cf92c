"""Measures the cost of the dashboard with 500 models and 10,000 releases, and with 50 people who have pages open.

    make bench-dashboard                                  # python -m benchmarks.dashboard --models 500 --viewers 50

Pages are measured on a database filled with rows. Viewers are measured on a whole `manage.py up` with as many small models, all
loaded, some of which get requests now and then.

| module | does |
| --- | --- |
| `house` | runs the product with its models, a person who is signed in, and a light load |
| `filled` | runs the web process on a database with the rows of months |
| `pages` | measures every page: milliseconds as a browser sees them, CPU time, queries |
| `viewers` | opens WebSockets that follow live charts, and pages whose parts refresh themselves |
"""
