"""The demo: eight device processes, a real broker and an aggregator on one machine, with real digits."""
