"""How people follow a run: a terminal, a log, tables."""
