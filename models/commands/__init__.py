"""Subcommands of `device-runtime` about models."""
