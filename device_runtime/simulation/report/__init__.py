"""What a comparison came to: a table, plots, and one page that opens without a server."""
