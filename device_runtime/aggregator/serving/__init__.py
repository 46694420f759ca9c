"""The process of the service: settings, start, logs, and exit codes."""
