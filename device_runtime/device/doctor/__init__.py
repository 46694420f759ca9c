"""Checks of `device-runtime doctor`."""
