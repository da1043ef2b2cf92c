"""Who uses what: it counts the requests, rows, compute time and bytes of each token, and refuses requests over a quota.

    auth_file.py   the tokens and quotas of --auth-file, read again when the file changes
    accounts.py    Account, Use and Quota: the counters, on the path of every request
    counter_page.py the memory of the counters, a mapped file that outlives a killed process
    usage_log.py   the files of --usage-log
    ledger.py      finds the account of a request, and writes the log once a second

Imports serving.core, serving.cli and serving.resources; called by serving.server and serving.frontends.
"""
