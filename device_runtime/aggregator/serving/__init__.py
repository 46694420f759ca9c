"""The process of the service: its settings, start, log and end."""
