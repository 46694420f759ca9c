"""The papers' tables: their printed numbers beside those of our own runs."""
