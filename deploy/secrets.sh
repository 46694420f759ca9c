#!/bin/sh
# Makes secrets/ for compose.yaml: the aggregator's password at the broker, Mosquitto's password file, and
# the token of HTTP. What is there already stays. A device: mosquitto_passwd -b secrets/passwords NAME PASSWORD
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
[ -s secrets/http_token ] || openssl rand -hex 32 > secrets/http_token
[ -s secrets/broker_password ] || openssl rand -hex 32 > secrets/broker_password
if [ ! -s secrets/passwords ]; then
  : > secrets/passwords
  mosquitto_passwd -b secrets/passwords aggregator "$(cat secrets/broker_password)"
fi
# The containers' users are not ours: the folder keeps others out, its files need not.
chmod 0644 secrets/http_token secrets/broker_password secrets/passwords
echo "secrets are in $(pwd)/secrets"
