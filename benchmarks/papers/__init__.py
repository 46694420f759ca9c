"""Tables of the papers: their numbers, and the runs here that stand beside them."""
