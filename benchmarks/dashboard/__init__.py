"""What does the dashboard cost with 500 models, and with 50 people who watch live charts?

    make bench-dashboard                                  # python -m benchmarks.dashboard --models 500 --viewers 50

A whole `manage.py up` with so many small models, all loaded, some of them asked now and then.

| module | does |
| --- | --- |
| `house` | the running product: its models, a person who is signed in, a light load |
| `pages` | every page: milliseconds as a browser meets them, processor time, queries |
| `viewers` | WebSockets that follow live charts, and open pages whose parts refresh themselves |
"""
