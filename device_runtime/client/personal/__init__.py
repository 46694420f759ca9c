"""The model that a device has for itself: kept, judged on its own samples, asked for predictions."""
