"""Views of a run for people: a live terminal, log lines, and tables."""
