#!/usr/bin/env bash
# The daemon as a user's service under a real systemd, in a machine made for it (systemd-nspawn; takes root): installed,
# killed, stopped and started in mid-run, hung, and rebooted in mid-run. Skips with 77 where no such machine can be had.
#
#   tests/lab/service.sh SYSTEMD_LAB ROOT [BINARY]
#
# SYSTEMD_LAB builds and boots the machine (`build ROOT`, `boot ROOT SCRIPT DIR`); ROOT is kept between runs.
set -euo pipefail
lab=${1:?the program that builds and boots the machine} root=${2:?the machine}
here=$(cd "$(dirname "$0")" && pwd)
bin=${3:-$here/../../target/debug/overnight}
[ "$(id -u)" = 0 ] || { echo "service lab: skipped, it needs root" >&2; exit 77; }
[ -x "$bin" ] || { echo "service lab: build overnight first" >&2; exit 2; }
"$lab" build "$root" || { echo "service lab: skipped, the machine cannot be built" >&2; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
install -m 755 "$bin" "$dir/overnight"
cp "$here/service/"*.sh "$dir"
chmod -R go+rX "$dir"
for part in evening morning; do
  printf 'set -e\ninstall -m 755 /lab/dir/overnight /usr/local/bin/overnight\nas_night bash /lab/dir/%s.sh\n' $part >"$dir/$part.root"
done
echo 'bash /lab/dir/system.sh' >>"$dir/morning.root"
rm -rf "$root/home/night/"{code,code-state,.local,.config,spawns,go}
"$lab" boot "$root" "$dir/evening.root" "$dir"
# What comes now is after a reboot.
"$lab" boot "$root" "$dir/morning.root" "$dir"
echo "service lab: all well"
