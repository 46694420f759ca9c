"""Optimisers, gradient clipping and softmax heads: training in numpy, beside an engine."""
