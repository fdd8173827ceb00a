# Building and measuring one revision, for tests/load/compare. Source it after deploy/local/lib.sh and servers.sh.
# shellcheck shell=bash disable=SC2154  # tests/load/compare sets build, seconds, latency and train

WORKS=(rate at-once 64 256 idle)
PROGRAMS=(ingress provisioner notifier console sandbox esimctl)

# `number OPTION VALUE…`: the value has to be a number.
number() { [[ ${2-} =~ ^[1-9][0-9]*$ ]] || fail "$1 needs a number"; }

# `key_of REVISION`: the name of its folder, which is its commit, or `tree` for the working tree.
key_of() {
  [[ $1 != . ]] || { echo tree; return; }
  git rev-parse --verify --quiet --short=12 "$1^{commit}" || fail "git knows no revision $1"
}

# `sources KEY`: the folder of its sources.
sources() { [[ $1 == tree ]] && echo "$ROOT" || echo "$LOCAL_DIR/sources/$1"; }

# `compile KEY FLAGS` builds the programs. All revisions share one target folder, so dependencies that have not changed
# are compiled once. Sources are touched, because Cargo compares times and a worktree's may be older than what is built.
compile() {
  local arguments=(build --workspace --locked) program
  for program in "${PROGRAMS[@]}"; do arguments+=(--bin "$program"); done
  [[ $build == debug ]] || arguments+=(--release)
  (
    cd "$(sources "$1")"
    export CARGO_TARGET_DIR=$LOCAL_DIR/target CARGO_INCREMENTAL=0 SQLX_OFFLINE=true RUSTFLAGS=$2
    export CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_DEBUG=none CARGO_PROFILE_DEV_DEBUG=none
    unset RUSTC_WORKSPACE_WRAPPER
    cargo "${arguments[@]}" >&2
  ) || fail "the build of $1 failed"
}

# `built REVISION KEY`: its programs are in programs/KEY-RECIPE, as in a target folder of Cargo. Those of the working tree are always built, because
# nobody knows what has changed.
built() {
  local programs=$LOCAL_DIR/programs/$2-$RECIPE counts=$LOCAL_DIR/counts profile=$LOCAL_DIR/$2.profdata program
  [[ $2 == tree || -d $(sources "$2") ]] || git worktree add --quiet --force --detach "$(sources "$2")" "$1"
  [[ $2 == tree || ! -d $programs ]] || return 0
  if [[ $train == true ]]; then
    say "$2: training"
    compile "$2" "-Cprofile-generate=$counts"
    (
      cd "$(sources "$2")"
      CARGO_TARGET_DIR=$LOCAL_DIR/target RUSTFLAGS="-Cprofile-generate=$counts" cargo build --release --locked -p load >&2
      CARGO_TARGET_DIR=$LOCAL_DIR/target deploy/train release "$counts" "$profile" >&2
    ) || fail "the training of $2 failed"
    compile "$2" "-Cprofile-use=$profile"
  else
    compile "$2" ''
  fi
  mkdir -p "$programs.new/$build"
  for program in "${PROGRAMS[@]}"; do cp "$LOCAL_DIR/target/$build/$program" "$programs.new/$build/"; done
  rm -rf "$programs"
  mv "$programs.new" "$programs"
}

# `generator` builds the program that orders, of the working tree.
generator() {
  build_programs "$build" load
  GENERATOR=${CARGO_TARGET_DIR:-$ROOT/target}/$build/load
}

# `slow_flushes MS`: PG_BIN becomes a folder whose postgres loads a library that makes each flush take so much longer. A
# wrapper, because deploy/local passes no LD_PRELOAD on, and that of an earlier revision cannot be changed.
slow_flushes() {
  local program real=${PG_BIN:-$(find_postgres)}
  need cc build-essential
  SLOW_FLUSHES=$LOCAL_DIR/slow_flushes.so
  cc -O2 -shared -fPIC -DMILLISECONDS="$1" -o "$SLOW_FLUSHES" "$ROOT/tests/load/slow_flushes.c"
  export PG_BIN=$LOCAL_DIR/slow-postgres
  rm -rf "$PG_BIN" && mkdir "$PG_BIN"
  for program in "$real"/*; do ln -s "$program" "$PG_BIN/"; done
  rm "$PG_BIN/postgres"
  printf '#!/bin/sh\nLD_PRELOAD=%s exec %s/postgres "$@"\n' "$SLOW_FLUSHES" "$real" >"$PG_BIN/postgres"
  chmod a+x "$PG_BIN/postgres"
}

# `flushes_slowly KEY`: fails if the running PostgreSQL does not have the library, because then nothing is slower.
flushes_slowly() {
  grep -q "$SLOW_FLUSHES" "/proc/$(<"$LOCAL_DIR/systems/$1/run/postgres.pid")/maps" ||
    fail "the PostgreSQL of $1 runs without $SLOW_FLUSHES, so its flushes are not slower"
}

# `system KEY up|down ARGUMENT…`: the system of a revision, started by its own scripts with its own programs.
system() {
  (
    cd "$(sources "$1")"
    unset ENV_FILE BIN_DIR
    export CARGO_TARGET_DIR=$LOCAL_DIR/programs/$1-$RECIPE LOCAL_DIR=$LOCAL_DIR/systems/$1
    mkdir -p "$LOCAL_DIR/log"
    "deploy/local/$2" "${@:3}"
  ) >>"$LOCAL_DIR/log/systems.log" 2>&1 || [[ $2 == down ]] || fail "the system of $1 does not start; see $LOCAL_DIR/log/systems.log"
}

# `measure KEY WORK PREFIX`: one run of this work on a fresh system.
measure() {
  local arguments=(--seconds "$seconds" --out "$3" --pgbench-seconds 0) wait=2s release=()
  [[ $build == debug ]] || release=(--release)
  [[ -z $latency ]] || arguments+=(--provider-latency "$latency")
  case $2 in
    rate) arguments+=(--rate 200) ;;
    at-once) arguments+=(--rate 200) wait=0 ;;
    64 | 256) arguments+=(--mode deliver --connections "$2") ;;
    idle) arguments+=(--rate 20 --counts) ;;
  esac
  system "$1" down --wipe
  PLACEMENT_WAIT=$wait system "$1" up --no-build "${release[@]}"
  [[ -z ${SLOW_FLUSHES-} ]] || flushes_slowly "$1"
  # No order needs it.
  system "$1" down console
  (
    set -a
    LOCAL_DIR=$LOCAL_DIR/systems/$1
    # shellcheck source=/dev/null
    source "$LOCAL_DIR/env"
    exec "$GENERATOR" "${arguments[@]}"
  ) >>"$LOCAL_DIR/log/runs.log" 2>&1 || fail "the run failed; the end of $LOCAL_DIR/log/runs.log: $(tail -n 3 "$LOCAL_DIR/log/runs.log")"
  system "$1" down --wipe
}
