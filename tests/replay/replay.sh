#!/usr/bin/env bash
# Replays real history: consecutive commits of a repository become tasks whose agent applies the real patch, in
# parallel where they touch different files. With the repository's own tests as the check, `overnight run` has to merge
# all of them, and the tree at the end has to be the one that history has.
#
#   tests/replay/replay.sh --repo CLONE --check 'COMMAND' [--last COMMIT] [--count 20] [--slots 4] [--in-order] [--keep]
#   tests/replay/replay.sh --made       a repository made here: renames, modes, binary files, a merge, odd names
#
# OVERNIGHT names the binary (target/release/overnight or target/debug/overnight where nothing is said). With --in-order
# each task waits for the one before it: for histories whose tests need what commits to other files brought.
set -euo pipefail

die() { echo "replay: $*" >&2; exit 2; }

repo='' check='' last=HEAD count=20 slots=4 made='' keep='' in_order=''
while [ $# -gt 0 ]; do
  case $1 in
    --repo) repo=$2; shift ;;
    --check) check=$2; shift ;;
    --last) last=$2; shift ;;
    --count) count=$2; shift ;;
    --slots) slots=$2; shift ;;
    --made) made=1 ;;
    --keep) keep=1 ;;
    --in-order) in_order=1 ;;
    *) die "unknown argument $1" ;;
  esac
  shift
done

top=$(cd "$(dirname "$0")/../.." && pwd)
bin=${OVERNIGHT:-$top/target/release/overnight}
[ -x "$bin" ] || bin=$top/target/debug/overnight
[ -x "$bin" ] && bin=$(cd "$(dirname "$bin")" && pwd)/$(basename "$bin")
[ -x "$bin" ] || die "build overnight first, or name it in OVERNIGHT"

work=$(mktemp -d "${TMPDIR:-/tmp}/overnight-replay.XXXXXX")
[ -n "$keep" ] || trap 'rm -rf "$work"' EXIT
mkdir "$work/patches"
export OVERNIGHT_HOME=$work/home GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1

# A small history of our own, with what makes patches hard.
make_repo() {
  git init -q -b main "$1"
  cd "$1"
  git config user.name Maker; git config user.email maker@localhost
  mkdir lib tests
  seq 1 40 >lib/one.txt; seq 1 40 >lib/two.txt
  printf '#!/bin/sh\ncat lib/*.txt | grep -q 40\n' >tests/run.sh
  git add -A; git commit -qm 'Begin'
  sed -i.b 's/^3$/three/' lib/one.txt; rm lib/one.txt.b; git commit -qam 'Say three'
  sed -i.b 's/^9$/nine/' lib/two.txt; rm lib/two.txt.b; git commit -qam 'Say nine'
  git mv lib/one.txt lib/first.txt; git commit -qm 'Call it first'
  head -c 3000 /dev/urandom >picture.bin; git add -A; git commit -qm 'A picture'
  chmod +x tests/run.sh; git commit -qam 'Make the tests a program'
  mkdir 'a folder'; echo 'ä' >"a folder/ö file.txt"; git add -A; git commit -qm "An odd name: it's here \"so\""
  git checkout -qb side HEAD~2; echo side >side.txt; git add -A; git commit -qm 'On the side'
  git checkout -q main; git merge -q --no-ff -m 'Merge the side' side
  ln -s lib/two.txt link; git rm -q picture.bin; git add -A; git commit -qm 'A link in, a picture out'
  sed -i.b 's/^39$/last but one/' lib/first.txt; rm lib/first.txt.b; git commit -qam 'Say last but one'
  cd - >/dev/null
}

if [ -n "$made" ]; then
  repo=$work/made check='sh tests/run.sh' count=9
  make_repo "$repo"
fi
[ -n "$repo" ] && [ -n "$check" ] || die "--repo and --check are needed"

code=$work/code
git clone -q --no-hardlinks "$repo" "$code"
cd "$code"
last=$(git rev-parse --verify "$last^{commit}")
# One line of history, oldest first; a commit without changes is no task.
commits=()
for c in $(git rev-list --first-parent "$last"); do
  git rev-parse -q --verify "$c^1" >/dev/null || break
  git diff --quiet "$c^1" "$c" || commits=("$c" ${commits[@]+"${commits[@]}"})
  [ ${#commits[@]} -lt "$count" ] || break
done
[ ${#commits[@]} -eq "$count" ] || die "there are only ${#commits[@]} commits"
first=${commits[0]}
git checkout -q -B main "$first^1"
git remote remove origin
git config user.name Replay; git config user.email replay@localhost

q=$(printf '%s' "$check" | sed 's/\\/\\\\/g; s/"/\\"/g')
cat >overnight.toml <<TOML
[project]
name = "replay"
base = "main"
agent = "script"
slots = $slots
attempts = 1

[agents]
script = true

[[checks]]
name = "test"
run = "$q"
timeout = "10m"
TOML
"$bin" init --state "$work/state" >/dev/null
"$bin" config approve --hash "sha256:$(sha256sum overnight.toml | cut -d' ' -f1)" >/dev/null

cat >"$work/apply.sh" <<'SH'
# The agent: the real change, its message and its author.
set -e
git apply --index --whitespace=nowarn "$1.patch"
git commit -q --no-verify --cleanup=verbatim --author="$(cat "$1.author")" -F "$1.message"
SH

declare -A touched
n=0 edges=0
for c in "${commits[@]}"; do
  n=$((n + 1)); name=$(printf 'commit-%02d' "$n"); at=$work/patches/$name
  git diff --binary --full-index --no-renames "$c^1" "$c" >"$at.patch"
  git log -1 --format=%B "$c" >"$at.message"
  git log -1 --format='%an <%ae>' "$c" >"$at.author"
  needs=()
  while IFS= read -r file; do
    before=${touched[$file]-}
    [ -z "$before" ] || case " ${needs[*]-} " in *" $before "*) ;; *) needs+=("$before") ;; esac
    touched[$file]=$name
  done < <(git -c core.quotePath=true diff --name-only --no-renames "$c^1" "$c")
  if [ -n "$in_order" ] && [ "$n" -gt 1 ]; then needs=("$(printf 'commit-%02d' $((n - 1)))"); fi
  edges=$((edges + ${#needs[@]}))
  mkdir -p "$work/state/tasks/$name"
  {
    # What history did to its tests was agreed to then.
    printf -- '---\ntitle: "Commit %s"\nstatus: queued\nreview: false\n' "${c:0:10}"
    if [ ${#needs[@]} -gt 0 ]; then printf 'depends_on:\n'; printf '  - %s\n' "${needs[@]}"; fi
    printf 'script:\n  - "sh %s/apply.sh %s"\n---\n\nApply it.\n' "$work" "$at"
  } >"$work/state/tasks/$name/README.md"
done

echo "replay: $n commits, ${first:0:10}..${last:0:10}, $edges dependencies, $slots slots"
start=$(date +%s)
status=0
"$bin" run || status=$?
took=$(($(date +%s) - start))
right=$(git rev-parse "$last^{tree}")
is=$(git rev-parse "overnight/main^{tree}")
merged=$(git rev-list --first-parent --count main..overnight/main)
echo "replay: $merged of $n merged in $took s, exit $status; tree $is, in history $right"
[ "$status" -eq 0 ] && [ "$merged" -eq "$n" ] && [ "$is" = "$right" ]
