"""Networks of torch as functions of their weights: objectives, losses, gradients, layers."""
