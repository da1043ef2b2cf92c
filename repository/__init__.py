"""The managed repository: Triton's layout on disk, read by the server and written by the dashboard."""
