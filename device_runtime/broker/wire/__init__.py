"""The protocol over MQTT: messages, topics, blobs, transfers, the link to a broker."""
