"""What crosses the wire: messages, topics, blobs, transfers, the MQTT link."""
