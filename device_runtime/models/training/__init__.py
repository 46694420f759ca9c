"""Optimisers, gradient clipping and softmax heads: the parts of training that run in numpy."""
