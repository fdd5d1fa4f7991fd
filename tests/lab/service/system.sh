# Inside the machine, as root: the same as a service of the machine that runs as its user.
set -eu
fail() { echo "FAILED: $*"; journalctl -u overnight --no-pager | tail -n 30 || true; exit 1; }
until_true() { local what=$1; shift; for _ in $(seq 300); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.2; done; fail "$what"; }
echo '== a service of the system'
overnight service install --system --as night --now
systemd-analyze verify /etc/systemd/system/overnight.service
until_true 'it runs' overnight service status --system
[ "$(ps -o user= -p "$(systemctl show overnight -p MainPID --value)")" = night ] || fail 'it runs as another user'
as_night sh -c 'cd code && overnight add third --script "echo 3 > third.txt"' >/dev/null
until_true 'its task is merged' as_night sh -c 'cd code && overnight task status third | grep -q completed'
overnight service uninstall --system
[ ! -e /etc/systemd/system/overnight.service ] || fail 'the file is left'
