#!/bin/sh
# Makes sure that the database of the tests is there: installs Debian's when it may, else says what to do.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && exit 0
command -v initdb >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing postgresql with apt-get" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null && exit 0
fi
echo "Tests of the store in PostgreSQL are skipped: there is none. On Debian or Ubuntu: sudo apt-get install postgresql" >&2
exit 0
