"""The report of a comparison: a table, plots, and one page that opens without a server."""
