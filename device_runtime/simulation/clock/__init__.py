"""Virtual time: who is asked when, and what each device then does."""
