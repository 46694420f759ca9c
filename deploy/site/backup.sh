#!/bin/sh
# Backs up this site into backups/, or the folder that is named, while it runs; keeps the last 14 days of it.
# Each night, by cron:   17 3 * * * {{folder}}/backup.sh
# Restore and move to another machine: docs/service.md.
set -eu
umask 077
cd "{{folder}}"
to=${1:-backups}
mkdir -p "$to"
day=$(date +%F)
"{{python}}" -m device_runtime backup run "$to/run-$day.tar"
# The broker's retained messages are published again, and metrics are no part of the run.
tar -cf "$to/site-$day.tar" --exclude 'enrolment/data/*' server.toml task.toml compose.yaml prometheus.yml \
  alerts.yml grafana enrolment http-token grafana-password backup.sh
for kind in run site; do
  ls -1 "$to/$kind"-*.tar | sort -r | tail -n +15 | while read -r old; do rm -- "$old"; done
done
