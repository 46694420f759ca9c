"""Subcommands of the device: each module has HELP, EXAMPLE, add_arguments and run."""
