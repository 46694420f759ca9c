"""Comparisons: policies times seeds on one fleet, each run a process with its own files, resumable."""
