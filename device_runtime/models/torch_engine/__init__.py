"""The engine that trains and predicts with torch. Needs torch."""
