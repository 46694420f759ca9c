"""The settings of a task, and the systems (FedAvg, HeteroFL, ...) that it may be run as."""
