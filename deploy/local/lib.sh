# Shared by deploy/local/*, deploy/sqlx and tests/run: settings, processes, waiting. Sourced, never run.
# shellcheck shell=bash disable=SC2034  # the variables set here are read by those scripts

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
LOCAL_DIR=${LOCAL_DIR:-$ROOT/.local}
[[ $LOCAL_DIR == /* ]] || LOCAL_DIR=$ROOT/$LOCAL_DIR
export LOCAL_DIR
ENV_FILE=$LOCAL_DIR/env
READY_SECONDS=60
LAUNCHED=''

say() { printf '%s\n' "$*" >&2; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# `usage FILE`: the comment at the head of a script is its help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$1"; }

# --- what the machine has -----------------------------------------------------------------------

# `apt_install PACKAGE…`: false where that can't be done, so that the caller says what is missing.
apt_install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  say "installing $* with apt-get"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
    </dev/null >"$LOCAL_DIR/log/apt-get.log" 2>&1 ||
    fail "apt-get could not install $*; see $LOCAL_DIR/log/apt-get.log"
}

# `need COMMAND PACKAGE`
need() {
  command -v "$1" >/dev/null || apt_install "$2" ||
    fail "$1 is missing: install it (Debian: apt-get install $2; macOS, not tried: xcode-select --install, or brew install $2)"
}

# `need_rust`: cargo and what it needs to build this workspace.
need_rust() {
  command -v cargo >/dev/null || fail "cargo is missing: install Rust (https://rustup.rs)"
  need cc build-essential
}

# --- settings: the environment, else what .local/env remembers, else the default ------------------

SETTINGS=()
# What the services take from the caller's environment; deploy/local/up --help names them too.
SERVICE_SETTINGS=(BRAND PLACEMENT_WAIT MAX_ITEMS MAX_UNITS PROVIDERS USIMSA_URL USIMSA_ACCESS_KEY USIMSA_SECRET_KEY
  PROVIDER_CONCURRENCY PROVIDER_TIMEOUT SETTLE WEBHOOK_ALLOW WEBHOOK_TIMEOUT DELIVERY_CONCURRENCY ENDPOINT_CONCURRENCY
  LOG LOG_FORMAT SHUTDOWN_TIMEOUT)

remembered() {
  [[ ! -f $ENV_FILE ]] || sed -n "s/^$1=//p" "$ENV_FILE"
}

# `setting NAME DEFAULT` exports NAME, to be kept in .local/env. Set but empty means: back to the default.
setting() {
  local value=${!1-}
  [[ -n ${!1+set} ]] || value=$(remembered "$1")
  derived "$1" "${value:-$2}"
}

# `derived NAME VALUE`: the same for a value that nobody chooses.
derived() {
  if [[ -n $2 ]]; then
    export "$1=$2"
    SETTINGS+=("$1")
  else
    unset "$1"
  fi
}

# `secret NAME VALUE`: made once, then only ever remembered.
secret() {
  local old
  old=$(remembered "$1")
  derived "$1" "${old:-$2}"
}

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
random_base64() { head -c "$1" /dev/urandom | base64 | tr -d '\n'; }

save_settings() {
  local name
  (
    umask 077
    for name in "${SETTINGS[@]}"; do printf '%s=%s\n' "$name" "${!name}"; done >"$ENV_FILE.new"
  )
  mv "$ENV_FILE.new" "$ENV_FILE"
}

# `load_settings`: exports what .local/env holds, and sets BIN, the absolute BIN_DIR.
load_settings() {
  local line
  while IFS= read -r line; do export "${line?}"; done <"$ENV_FILE"
  BIN=${BIN_DIR-}
  [[ $BIN == /* ]] || BIN=$ROOT/$BIN
}

# `lock`: one up or down at a time. What outlives the scripts is started with their locks (7: tests/run) closed.
lock() {
  mkdir -p "$LOCAL_DIR/run" "$LOCAL_DIR/log" "$LOCAL_DIR/data"
  command -v flock >/dev/null || return 0 # macOS has none
  exec 8>"$LOCAL_DIR/run/lock"
  flock -n 8 && return
  say "another deploy/local command is at work on $LOCAL_DIR; waiting for it"
  flock -w 1800 8 || fail "gave up after 30 minutes"
}

# --- processes: run/NAME.pid, with run/NAME.stamp (birth and fingerprint) beside it ---------------

# `birth PID`: when it started, or nothing if it's gone or a zombie. With the pid it names one process for good.
birth() {
  local stat
  if [[ -r /proc/self/stat ]]; then
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    # shellcheck disable=SC2086  # split into the fields after the name, which may hold spaces
    set -- ${stat##*) }
    [[ $1 == Z ]] || printf '%s' "${20}"
  else
    ps -o lstart= -p "$1" | tr -d ' ' || true
  fi
}

# `running NAME`: true if the process that we started lives; sets PID and FINGERPRINT.
running() {
  local born
  PID='' FINGERPRINT=''
  [[ -f $LOCAL_DIR/run/$1.pid && -f $LOCAL_DIR/run/$1.stamp ]] || return 1
  PID=$(<"$LOCAL_DIR/run/$1.pid")
  read -r born FINGERPRINT <"$LOCAL_DIR/run/$1.stamp"
  [[ -n $born && $(birth "$PID") == "$born" ]]
}

# `launch NAME PORTS COMMAND…` starts it detached, or leaves it if the same command with the same environment
# runs already and its program is no newer. PORTS names the variables of its ports. `env` and `setpriv` in COMMAND exec.
launch() {
  local name=$1 ports=$2 program=${*: -1} fingerprint port session=nohup
  shift 2
  [[ -z ${PROGRAM-} ]] || program=$PROGRAM
  fingerprint=$(printf '%s\n' "$@" | cksum | tr ' ' -)
  if running "$name"; then
    if [[ $FINGERPRINT == "$fingerprint" && ! $program -nt $LOCAL_DIR/run/$name.pid ]]; then
      say "$name: already running (pid $PID)"
      return
    fi
    say "$name: its program or settings changed, restarting"
    stop "$name"
  fi
  for port in $ports; do
    ! answers "${!port}" || fail "$name: port ${!port} is in use by another program; choose one with $port=…"
  done
  ! command -v setsid >/dev/null || session=setsid
  (cd / && exec "$session" "$@") </dev/null >>"$LOCAL_DIR/log/$name.log" 2>&1 7>&- 8>&- &
  PID=$! LAUNCHED+=" $name "
  printf '%s\n' "$PID" >"$LOCAL_DIR/run/$name.pid"
  printf '%s %s\n' "$(birth "$PID")" "$fingerprint" >"$LOCAL_DIR/run/$name.stamp"
}

# `answers PORT`: true if something on this machine listens there.
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# `await NAME CONDITION…` waits until the condition holds; fails at the deadline, or at once when the process is gone.
await() {
  local name=$1 status=0 began=$SECONDS
  shift
  until "$@" >/dev/null 2>&1; do
    if ! running "$name"; then
      [[ -z $PID ]] || wait "$PID" 2>/dev/null || status=$?
      [[ $status != 127 ]] || status=unknown # not a child of this run
      died "$name" "stopped with exit status $status"
    fi
    ((SECONDS - began < READY_SECONDS)) || died "$name" "was not ready after $READY_SECONDS s"
    sleep 0.1
  done
  [[ $LAUNCHED != *" $name "* ]] || say "$name: ready (pid $(<"$LOCAL_DIR/run/$name.pid"))"
}

died() {
  say "error: $1 $2; the end of $LOCAL_DIR/log/$1.log:"
  tail -n 15 "$LOCAL_DIR/log/$1.log" | sed 's/^/    /' >&2
  exit 1
}

# `stop NAME [SIGNAL]`: asks, waits, and after the services' own deadline insists.
stop() {
  local name=$1 signal=${2:-TERM} began=$SECONDS
  if running "$name"; then
    kill -s "$signal" "$PID"
    while running "$name"; do
      if ((SECONDS - began >= 35)); then
        say "$name: still there 35 s after SIG$signal, killing it"
        kill -s KILL "$PID" 2>/dev/null || true
        began=$SECONDS
      fi
      sleep 0.05
    done
    say "$name: stopped"
  fi
  rm -f "$LOCAL_DIR/run/$name.pid" "$LOCAL_DIR/run/$name.stamp"
}

http_ok() { curl --fail --silent --max-time 2 --output /dev/null "$1"; }
