"""The aggregator's HTTP server: dashboard, REST, /metrics, /healthz and the join page."""
