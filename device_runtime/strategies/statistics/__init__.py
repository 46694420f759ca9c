"""Class statistics of features, and the closed-form head that is computed from them."""
