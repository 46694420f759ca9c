"""Class statistics, and the head that is computed from them."""
