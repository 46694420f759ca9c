"""Sends contributions until their receipts come, and downloads the blobs of offers."""
