"""Sends contributions until their receipts come; downloads the blobs of offers, and caches what comes of
them.
"""
