"""What `device-runtime doctor` examines."""
