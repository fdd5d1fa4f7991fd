# Inside the machine, as its user, after the reboot: the service came up by itself and goes on.
set -eu
fail() { echo "FAILED: $*"; overnight status || true; journalctl --user -u overnight --no-pager | tail -n 30 || true; exit 1; }
until_true() { local what=$1; shift; for _ in $(seq 300); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.2; done; fail "$what"; }
cd code
until_true 'the service runs by itself' overnight service status
until_true 'the agent runs again' sh -c '[ "$(wc -l < ~/spawns)" = 2 ]'
touch ~/go
until_true 'long is merged' sh -c 'overnight task status long | grep -q completed'
[ "$(wc -l <~/spawns)" = 2 ] || fail 'more agents than boots'
until_true 'the work is there' sh -c 'git cat-file -e overnight/main:long.txt && git cat-file -e overnight/main:quick.txt'
overnight report
overnight service uninstall
[ ! -e ~/.config/systemd/user/overnight.service ] || fail 'the file is left'
! systemctl --user is-active -q overnight || fail 'it still runs'
