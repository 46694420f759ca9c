"""Robust merging, which a few lying devices cannot steer: the rules, and the screen that applies them."""

from .rules import RULES, Robust, Rule
from .screen import Screen

__all__ = ["RULES", "Robust", "Rule", "Screen"]
