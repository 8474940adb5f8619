#!/bin/sh
# Makes sure that the proxy of the tests is there: installs Debian's when it may, else says what to do.
PATH="$PATH:/usr/sbin" command -v nginx >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing nginx with apt-get" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx >/dev/null && exit 0
fi
echo "The tests need nginx on the PATH. On Debian or Ubuntu: sudo apt-get install nginx" >&2
exit 1
