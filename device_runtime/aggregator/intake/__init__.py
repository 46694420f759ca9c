"""What comes from devices: received, checked, kept."""
