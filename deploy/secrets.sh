#!/bin/sh
# Makes secrets/ for compose.yaml: the aggregator's password at the broker, Mosquitto's password file, and
# the token of HTTP. What is there already stays. A device, or another password for one:
#   sh secrets.sh NAME PASSWORD && docker compose restart mosquitto
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

password() {
  if command -v mosquitto_passwd > /dev/null; then
    mosquitto_passwd -b secrets/passwords "$1" "$2"
  else
    docker run --rm -v "$(pwd)/secrets:/secrets" eclipse-mosquitto:2 \
      mosquitto_passwd -b /secrets/passwords "$1" "$2"
  fi
}

[ -s secrets/http_token ] || openssl rand -hex 32 > secrets/http_token
[ -s secrets/broker_password ] || openssl rand -hex 32 > secrets/broker_password
if [ ! -s secrets/passwords ]; then
  : > secrets/passwords
  password aggregator "$(cat secrets/broker_password)"
fi
[ $# -eq 0 ] || password "$1" "$2"
# The containers' users are not ours: the folder keeps others out, its files need not.
chmod 0644 secrets/http_token secrets/broker_password secrets/passwords
echo "secrets are in $(pwd)/secrets"
