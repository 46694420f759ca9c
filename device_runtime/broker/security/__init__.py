"""Enrolment, signatures, certificates, and what a broker lets a client do."""
