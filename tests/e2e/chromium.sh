#!/bin/sh
# Makes sure that the browser of the tests is there: installs Debian's when it may, else says what to do.
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium with apt-get" >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null && exit 0
fi
echo "The tests need Chromium on the PATH. On Debian or Ubuntu: sudo apt-get install chromium" >&2
exit 1
