# Inside the machine, as its user: the service is installed, and everything is done to it that a night may do.
set -eu
fail() { echo "FAILED: $*"; overnight status || true; journalctl --user -u overnight --no-pager | tail -n 30 || true; exit 1; }
until_true() { local what=$1; shift; for _ in $(seq 300); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.2; done; fail "$what"; }
pid() { systemctl --user show overnight -p MainPID --value; }
restarted() { [ "$(pid)" != 0 ] && [ "$(pid)" != "$before" ] && overnight service status; }
git config --global user.name Night && git config --global user.email night@localhost && git config --global init.defaultBranch main
mkdir code && cd code && git init -q
printf 'true\n' >test.sh && git add -A && git commit -qm 'Begin'
overnight init >/dev/null
overnight config set agents.script true >/dev/null && overnight config set project.agent script >/dev/null
overnight service install --now
systemd-analyze --user verify ~/.config/systemd/user/overnight.service
until_true 'the service runs' overnight service status
overnight service status
overnight add quick --script 'echo q > quick.txt' >/dev/null
overnight add long --script 'echo $$ >> ~/spawns; while [ ! -e ~/go ]; do sleep 0.2; done; echo l > long.txt' >/dev/null
until_true 'quick is merged' sh -c 'overnight task status quick | grep -q completed'
until_true 'long runs' test -s ~/spawns
agent=$(cat ~/spawns)

echo '== kill -9 of the daemon'
before=$(pid); kill -9 "$before"
until_true 'systemd starts it again' restarted
kill -0 "$agent" || fail 'the agent is gone'

echo '== systemctl stop and start in mid-run'
before=$(pid)
systemctl --user stop overnight
kill -0 "$agent" || fail 'the stop took the agent along'
systemctl --user start overnight
until_true 'it is started' restarted
until_true 'the agent is taken up' sh -c 'overnight show long | grep -q running'

echo '== stop, start and restart by its own verbs'
overnight stop --keep-agents >/dev/null
until_true 'it is left stopped' sh -c '! systemctl --user is-active -q overnight'
overnight start >/dev/null
[ "$(pid)" != 0 ] || fail 'start went past the service'
before=$(pid)
overnight restart >/dev/null
until_true 'it is started by the manager again' restarted
kill -0 "$agent" || fail 'the agent is gone'

echo '== a daemon that hangs'
mkdir -p ~/.config/systemd/user/overnight.service.d
printf '[Service]\nWatchdogSec=6\n' >~/.config/systemd/user/overnight.service.d/lab.conf
systemctl --user daemon-reload
systemctl --user restart overnight
until_true 'it is started with a shorter watchdog' overnight service status
sleep 8
overnight version | grep -q daemon || fail 'the watchdog took one that lives'
before=$(pid); kill -STOP "$before"
until_true 'the watchdog starts it again' restarted
kill -0 "$agent" || fail 'the agent is gone'
[ "$(wc -l <~/spawns)" = 1 ] || fail 'a second agent was started'
until_true 'it is active again' overnight service status
overnight service status
echo '== the machine goes down with the agent at work'
