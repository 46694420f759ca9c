"""Communication over MQTT: the protocol, the link to a broker, brokers, and their security."""
