"""Where the work on rounds is done: in this process or in one of its own."""
