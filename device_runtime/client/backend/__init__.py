"""Where the work on rounds is done: in the device's process or in one of its own."""
