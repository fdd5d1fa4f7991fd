#!/usr/bin/env bash
# The real agent CLIs through the real daemon, against the scripted model server of the agents lab, in a network namespace
# that has only loopback, with a fresh HOME and dummy keys.
#
#   tests/lab/agents.sh LAB_FOLDER OVERNIGHT_BINARY CLI...        (CLI: claude codex)
#
# Each CLI gets a project with one check and four tasks: a file is written; a failing check goes back to the same session
# and is mended there; a question ends as needs_input; a usage limit holds the profile and spends no attempt.
set -euo pipefail
lab=$(cd "$1" && pwd); binary=$(realpath "$2"); shift 2
installs=${LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/agent-lab}
bash "$lab/install.sh" "$@"

if [[ ${IN_NAMESPACE:-} != 1 ]]; then
  for cli in "$@"; do
    IN_NAMESPACE=1 LAB_DIR=$installs unshare -n -- bash "$0" "$lab" "$binary" "$cli"
  done
  exit
fi

cli=$1
ip link set lo up
work=$(mktemp -d); port=8089
trap 'kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
env -i PATH=/usr/bin:/bin python3 "$lab/model_server.py" --port "$port" --port-file "$work/port" --log "$work/requests.jsonl" \
  >"$work/server.out" 2>&1 &
server=$!
for _ in $(seq 200); do [[ -e $work/port ]] && break; sleep 0.05; done

export HOME=$work/home OVERNIGHT_HOME=$work/home/overnight
mkdir -p "$HOME" "$HOME/.codex"
export PATH=$installs/npm/node22/node_modules/.bin:$installs/npm/$cli/node_modules/.bin:/usr/local/bin:/usr/bin:/bin
export ANTHROPIC_BASE_URL=http://127.0.0.1:$port ANTHROPIC_API_KEY=sk-ant-dummy-0001 SCRIPTED_KEY=sk-dummy-0002
export CODEX_HOME=$HOME/.codex
cat >"$CODEX_HOME/config.toml" <<T
model = "gpt-5.5"
model_provider = "scripted"
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "http://127.0.0.1:$port/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
T
git config --global user.name Lab; git config --global user.email lab@example.invalid

mkdir "$work/code"; cd "$work/code"
git init -q -b main .
# The check's own output carries the marker that the model server follows next: so the fed-back failure mends the work.
cat >check.sh <<'T'
#!/bin/sh
[ -f strict ] || exit 0
grep -qx good strict && exit 0
echo 'strict must say good'
echo '[[scenario:write-file path=strict content="good\n"]]'
exit 1
T
chmod +x check.sh; echo lab >README.md; git add -A; git commit -qm init
cat >overnight.toml <<T
[project]
name = "lab"
base = "main"
agent = "$cli"
attempts = 3
slots = 1

[limits]
wall = "3m"
no_progress = "90s"

[agents.$cli]
kind = "$cli"
env_pass = ["SCRIPTED_KEY"]

[[checks]]
name = "strict"
run = ["./check.sh"]
T
"$binary" init >/dev/null
"$binary" config approve --hash "sha256:$(sha256sum overnight.toml | cut -d" " -f1)" >/dev/null
add() { "$binary" add "$1" --slug "$1" --priority "$2" --body "$3" >/dev/null; }
add write 9 '[[scenario:write-file path=hello.txt content="hi\n"]] Carry out the scripted task.'
add mend 8 '[[scenario:write-file path=strict content="bad\n"]] Carry out the scripted task.'
add ask 7 '[[scenario:ask-question question="Which database should I use?" mode=text]] Carry out the scripted task.'
add limit 1 '[[scenario:usage-limit kind=window reset=3600]] Carry out the scripted task.'

timeout 240 "$binary" run >"$work/run.out" 2>&1 &
run=$!
fail() { echo "FAIL $cli: $*"; tail -n 40 "$work/run.out"; "$binary" status || true; tail -n 5 "$work/requests.jsonl" | cut -c1-300; kill "$run" 2>/dev/null; exit 1; }
level() { # DESCRIPTION SECONDS COMMAND...
  local what=$1 until=$((SECONDS + $2)); shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || fail "$what"
    kill -0 "$run" 2>/dev/null || "$@" >/dev/null 2>&1 || fail "$what (the run ended)"
    sleep 0.3
  done
  echo "ok   $cli: $what"
}
said() { "$binary" show "$1" --json | grep -q "$2"; }
level "a file is written and merged" 120 git -C "$work/code" cat-file -e overnight/main:hello.txt
level "a failing check is mended" 120 sh -c "git -C '$work/code' show overnight/main:strict | grep -qx good"
level "a question waits for a person" 60 said ask 'Which database should I use'
level "a usage limit holds the profile" 90 sh -c "'$binary' status --json | grep -q 'is held'"
level "and spends no attempt" 10 said limit '"attempt": *0'
# Four tasks, five agent runs, four sessions: the failure went back to the session that had made it.
runs=$("$binary" events --json | grep -o '"kind": *"running"' | wc -l)
[[ $runs -eq 5 ]] || fail "expected five agent runs, saw $runs"
case $cli in
claude) sessions=$(find "$HOME/.claude/projects" -name '*.jsonl' | wc -l) ;;
codex) sessions=$(find "$CODEX_HOME/sessions" -name 'rollout-*.jsonl' | wc -l) ;;
esac
[[ $sessions -eq 4 ]] || fail "expected four sessions, saw $sessions"
echo "ok   $cli: the failure went back to the same session"
kill -TERM "$run"; wait "$run" || true
leftover=$(for p in /proc/[0-9]*; do [[ $(readlink "$p/ns/net" 2>/dev/null) == $(readlink /proc/$$/ns/net) ]] && tr '\0' ' ' <"$p/cmdline"; echo; done | grep -E "/$cli( |$)" || true)
[[ -z $leftover ]] || echo "note $cli: still alive: $leftover"
echo "ok   $cli: done"
