"""The formats of the files of batch jobs: CSV, JSONL and Parquet. Each reads rows, and writes them with the answers added. The
room imports only `shared`."""
