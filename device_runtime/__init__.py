"""On the device: measure, choose, train, report."""
