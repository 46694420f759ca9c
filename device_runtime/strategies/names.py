"""What is to be known of kinds of update by name alone. Importing this imports none of them."""

EXACT = frozenset({"zeroth-order", "class-means"})
"""Those that send exactly, whatever the codec: see `registry.coding`."""
