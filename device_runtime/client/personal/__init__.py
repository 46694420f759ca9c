"""The personal model of a device: kept, judged on its own samples, used for predictions."""
