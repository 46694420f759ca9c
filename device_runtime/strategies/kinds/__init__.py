"""The shipped kinds of update, one file each, and their registry."""
