"""Sends offers, blocks and receipts to devices, and routes their messages to tasks."""
