#!/bin/sh
# Backs up this site into backups/, or the folder that is named, while it runs; keeps the last 14 days of it.
# Each night, by cron:   17 3 * * * {{folder}}/backup.sh
# To restore it: docs/service.md, "Back up and restore".
set -eu
umask 077
cd "{{folder}}"
to=${1:-backups}
mkdir -p "$to"
day=$(date +%F)
{{python}} -m device_runtime backup run "$to/run-$day.tar" > /dev/null
# All else in this folder, own bundles and evaluation data too. Not metrics, nor what the broker retains:
# the aggregator publishes that again.
tar -cf "$to/site-$day.tar" --exclude ./run --exclude ./data --exclude ./backups --exclude "./$to" \
  --exclude './enrolment/data/*' .
echo "$to/run-$day.tar, $to/site-$day.tar; to restore, unpack both into a new folder DIR, then"
echo "device-runtime serve-init DIR --again"
for kind in run site; do
  ls -1 "$to/$kind"-*.tar | sort -r | tail -n +15 | while read -r old; do rm -- "$old"; done
done
