"""From the updates of one round to one model."""
