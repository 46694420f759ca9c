"""The agent of a device: turns the machine's commands into messages, training and waits."""
