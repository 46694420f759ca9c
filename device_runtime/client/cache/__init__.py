"""What a device keeps of a task on its disk."""
