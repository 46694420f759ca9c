"""A device as a service of its machine: installation and removal."""
