"""The main job on one machine: eight device processes, a real broker, an aggregator, real digits."""
