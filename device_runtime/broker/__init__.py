"""Everything that crosses the wire: messages, topics, blobs, pulled transfers, the MQTT link, brokers."""
