"""Robust merging, which a few lying devices cannot steer: the rules, and the screen that applies them."""

from .screen import Screen
from .settings import RULES, Robust, Rule

__all__ = ["RULES", "Robust", "Rule", "Screen"]
