"""From a torch module to a bundle. Needs torch."""
