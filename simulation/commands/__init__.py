"""Subcommands of the simulation: each module has HELP, EXAMPLE, add_arguments and run."""
