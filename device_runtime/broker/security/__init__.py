"""Enrolment of devices, signatures, certificates, and tests of a broker's access rights."""
