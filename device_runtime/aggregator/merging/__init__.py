"""From the contributions of a round to the next base model and the served one."""
