"""TCP and TLS connections of the link: opened address by address, and counted byte by byte."""
