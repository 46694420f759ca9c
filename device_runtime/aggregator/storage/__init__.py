"""What a run must not lose: its database, its files, the models that it has served."""
