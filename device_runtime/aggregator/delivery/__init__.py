"""What goes to devices, and where it goes: offers, blocks, replies."""
