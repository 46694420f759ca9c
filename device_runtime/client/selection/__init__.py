"""Which update a device can afford: measuring, predicting, choosing."""
