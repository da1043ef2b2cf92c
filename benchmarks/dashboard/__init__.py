"""The cost of the dashboard with 500 models and 10,000 releases, and with 50 people who have pages open.

    make bench-dashboard                                  # python -m benchmarks.dashboard --models 500 --viewers 50

Pages are measured on a database that is filled with rows; viewers on a whole `manage.py up` with so many small models, all
loaded, some of them asked now and then.

| module | does |
| --- | --- |
| `house` | the running product: its models, a person who is signed in, a light load |
| `filled` | the web process on a database with the rows of months |
| `pages` | every page: milliseconds as a browser meets them, processor time, queries |
| `viewers` | WebSockets that follow live charts, and open pages whose parts refresh themselves |
"""
