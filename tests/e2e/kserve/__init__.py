"""What KServe leaves in /mnt/models, served as its runtimes start the server; KServe itself does not run here."""
