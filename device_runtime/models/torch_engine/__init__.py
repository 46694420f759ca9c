"""The engine that trains with torch. Needs torch."""
