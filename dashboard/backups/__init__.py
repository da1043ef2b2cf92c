"""Backups of an installation: its database, models, archive, batch jobs, captures, usage log and keys, in files that are named
by their SHA-256. The room is used by `manage.py backup` and `manage.py restore`.

    ADDRESS/objects/<sha256>        every file, and every block of rows, once
    ADDRESS/backups/<time>.json     one backup: it names its objects, and is written last

store      a folder or a bucket as such an address
manifest   what a backup holds
tables     rows of the database as blocks of text, read from one snapshot
files      files of the shared folder
sealed     keys, encrypted with a passphrase
making     makes backups, and removes old ones
restoring  restores a backup into an empty installation, or verifies it
"""
