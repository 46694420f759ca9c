#!/bin/sh
# Makes secrets/ for compose.yaml: the aggregator's password at the broker, Mosquitto's password file, and
# the token of HTTP. What is there already stays. A device, whose password is then in secrets/NAME.password:
#   sh secrets.sh NAME && docker compose restart mosquitto
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

# The password goes to mosquitto_passwd in a file: `ps` shows everybody the words of a command.
password() {
  printf '%s:%s\n' "$1" "$2" > secrets/.new
  if command -v mosquitto_passwd > /dev/null; then
    mosquitto_passwd -U secrets/.new
  else
    docker run --rm -v "$(pwd)/secrets:/secrets" eclipse-mosquitto:2 mosquitto_passwd -U /secrets/.new
  fi
  { grep -v "^$1:" secrets/passwords || true; cat secrets/.new; } > secrets/.all
  cat secrets/.all > secrets/passwords
  rm secrets/.new secrets/.all
}

[ -s secrets/http_token ] || openssl rand -hex 32 > secrets/http_token
[ -s secrets/broker_password ] || openssl rand -hex 32 > secrets/broker_password
if [ ! -s secrets/passwords ]; then
  : > secrets/passwords
  password aggregator "$(cat secrets/broker_password)"
fi
if [ $# -eq 2 ]; then
  echo "everybody on this machine can see that password: sh secrets.sh $1 makes one, in secrets/$1.password" >&2
  password "$1" "$2"
elif [ $# -eq 1 ]; then
  [ -s "secrets/$1.password" ] || openssl rand -hex 32 > "secrets/$1.password"
  password "$1" "$(cat "secrets/$1.password")"
fi
# The containers' users are not ours: the folder keeps others out, its files need not.
chmod 0644 secrets/http_token secrets/broker_password secrets/passwords
echo "secrets are in $(pwd)/secrets"
