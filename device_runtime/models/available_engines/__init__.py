"""The engines that are installed, and which of them runs a bundle."""
