"""The service that opens rounds, checks and keeps what devices send, merges it, and tells how it went."""
