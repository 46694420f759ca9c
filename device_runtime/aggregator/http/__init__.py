"""The service over HTTP: dashboard, REST, /metrics and /healthz, in a thread of its own beside the loop."""
