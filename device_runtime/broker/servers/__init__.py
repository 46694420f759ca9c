"""Brokers that this package starts and sets up: Mosquitto and amqtt."""
