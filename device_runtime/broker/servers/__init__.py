"""Starts and sets up brokers: Mosquitto and amqtt."""
