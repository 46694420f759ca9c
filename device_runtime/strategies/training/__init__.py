"""Local training and all else that the device's halves of kinds of update share."""
