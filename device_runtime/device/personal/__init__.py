"""The personal model of a device: stored, evaluated on its own samples, used for predictions."""
