"""Commands of the simulation: each module has add_arguments and run."""
