"""Fleets on one machine: so far the demo, whose devices are processes that pretend to be others."""
