"""What is to be learnt: the settings of a task, and the systems that it may be run as."""
