"""Random directions of zeroth-order training, and steps along them."""
