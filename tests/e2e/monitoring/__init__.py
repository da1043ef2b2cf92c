"""deploy/prometheus and deploy/grafana with a real Prometheus, which scrapes a real server."""
