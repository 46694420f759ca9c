"""An aggregator of one site that is a device of another: it merges its devices' updates and sends one."""
