"""Commands of the device: each module has add_arguments and run; `table` lists all commands."""
