"""Caches a task's bundles, base model and kind states on disk."""
