"""Commands for a researcher."""
