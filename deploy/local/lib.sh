# Settings, processes and waiting, for deploy/local/*, deploy/sqlx, deploy/release and tests/run. Source it.
# shellcheck shell=bash disable=SC2034  # the variables set here are read by those scripts

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
LOCAL_DIR=${LOCAL_DIR:-$ROOT/.local}
[[ $LOCAL_DIR == /* ]] || LOCAL_DIR=$ROOT/$LOCAL_DIR
export LOCAL_DIR
# Who makes the changes that esimctl records. USER is not set everywhere, for example in containers.
export ESIMCTL_OPERATOR=${ESIMCTL_OPERATOR:-${USER:-$(id -un)}}
ENV_FILE=$LOCAL_DIR/env
READY_SECONDS=60
LAUNCHED=''
declare -gA STARTED_AT=()

# `cargo`, or the program that CARGO names.
cargo() { command "${CARGO:-cargo}" "$@"; }

say() { printf '%s\n' "$*" >&2; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# `join WORD…` prints the words, separated by commas.
join() {
  local all
  all=$(printf ', %s' "$@")
  printf '%s' "${all#, }"
}

# `command_line SCRIPT` prints the command that runs the script for the same LOCAL_DIR.
command_line() { [[ $LOCAL_DIR == "$ROOT/.local" ]] && printf 'deploy/local/%s' "$1" || printf 'LOCAL_DIR=%q deploy/local/%s' "$LOCAL_DIR" "$1"; }

# `usage FILE` prints the help of a script, which is the comment at its head.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$1"; }

# `help_of PROGRAM ARGUMENT…` prints the program's own help if the program is built: --help builds nothing.
help_of() {
  local folder
  for folder in ${BIN_DIR:+"$BIN_DIR"} "${CARGO_TARGET_DIR:-$ROOT/target}"/{release,debug}; do
    [[ ! -x $folder/$1 ]] || exec "$folder/$1" "${@:2}" --help
  done
  say "OPTIONS are those of the program $1, which is not built: cargo build --workspace --bin $1"
}

# --- what the machine has -----------------------------------------------------------------------

# `apt_install PACKAGE…`: false without apt-get or root, so that the caller can name what is missing.
apt_install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  say "installing $* with apt-get"
  # apt-get does not wait for another one, and stages that run side by side may install at the same time.
  (
    ! command -v flock >/dev/null || flock 9
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
  ) 9>/var/lock/esim-apt-get.lock </dev/null >"$LOCAL_DIR/log/apt-get.log" 2>&1 ||
    fail "apt-get could not install $*; see $LOCAL_DIR/log/apt-get.log"
}

# `need COMMAND PACKAGE` installs the package if the command is missing, or fails and names it.
need() {
  command -v "$1" >/dev/null || apt_install "$2" ||
    fail "$1 is missing: install it (Debian: apt-get install $2; macOS, not tried: xcode-select --install, or brew install $2)"
}

# `need_rust`: cargo and what it needs to build this workspace.
need_rust() {
  command -v "${CARGO:-cargo}" >/dev/null || fail "cargo is missing: install Rust (https://rustup.rs)"
  need cc build-essential
}

# `build_programs PROFILE NAME…`: release or debug. All packages are selected, although only these programs are built:
# Cargo compiles a shared crate with the features that the selected packages ask for, so another selection
# (--package load) would compile some fifty crates a second time.
build_programs() {
  local name command=(cargo build --workspace --locked)
  need_rust
  [[ $1 != release ]] || command+=(--release)
  for name in "${@:2}"; do command+=(--bin "$name"); done
  "${command[@]}" >&2 || fail "the build failed: ${command[*]}"
}

# --- the processes, in the order of their start --------------------------------------------------

SERVERS=(postgres nats-server)
SERVICES=(sandbox provisioner notifier ingress console)
PROCESSES=("${SERVERS[@]}" "${SERVICES[@]}")

# The database roles: one per stage, one for operators and one for the console.
ROLES=(ingress provisioner notifier operator console)
# What master keys are for.
PURPOSES=(partners webhooks profiles)

upper() { printf '%s' "$1" | tr a-z A-Z; }

# `program_of NAME`: its file. Protocols that the sandbox does not speak need the program for tests.
program_of() {
  case $1:${SANDBOX_AS-} in
    sandbox:*airalo* | sandbox:*esim-access* | sandbox:*zendit*) echo upstreams ;;
    *) echo "$1" ;;
  esac
}

is_process() { [[ " ${PROCESSES[*]} " == *" $1 "* ]]; }

# Each port: its variable, its default, and its offset from LOCAL_PORTS.
PORTS=(
  'INGRESS_PORT 18080 80'
  'INGRESS_ADMIN_PORT 18081 81'
  'PROVISIONER_PORT 18082 82'
  'PROVISIONER_ADMIN_PORT 18083 83'
  'NOTIFIER_ADMIN_PORT 18084 84'
  'CONSOLE_PORT 18085 85'
  'CONSOLE_ADMIN_PORT 18086 86'
  'SANDBOX_PORT 18090 90'
  'SANDBOX_ADMIN_PORT 18091 91'
  'POSTGRES_PORT 15432 32'
  'NATS_PORT 14222 22'
  'NATS_MONITOR_PORT 18222 23'
)

# `ports_of NAME`: the variables of its ports.
ports_of() {
  local row
  for row in "${PORTS[@]}"; do
    [[ $row != "$(upper "${1%-server}")_"* ]] || echo "${row%% *}"
  done
}

# The settings that services take from the caller's environment. deploy/local/up --help lists them.
INGRESS_SETTINGS=(BRAND PLACEMENT_WAIT QUEUE_DEADLINE MAX_ITEMS MAX_UNITS PROVIDERS MAX_CONNECTIONS HEAD_TIMEOUT
  MAX_IN_FLIGHT PARTNER_ORDERS_PER_SECOND REDELIVER_INTERVAL LISTEN_WAIT
  WEBHOOK_HTTP_LIVE QR_BARE_UNTIL)
# The providers beside the sandbox, and the settings of our accounts there, which each of them names in its code. A file
# has `_` where the name of its provider has `-`.
ACCOUNTS=() ACCOUNT_SETTINGS=()
for adapter in $(grep -lE '^pub\(super\) const KNOWN: KnownProvider' "$ROOT"/services/provisioner/src/providers/*.rs); do
  account=$(basename "$adapter" .rs)
  [[ $account != sandbox ]] || continue
  mapfile -t -O "${#ACCOUNT_SETTINGS[@]}" ACCOUNT_SETTINGS < <(
    grep -ohE "\"${account^^}_[A-Z_]+\"" "$adapter" | tr -d '"' | sort -u
  )
  ACCOUNTS+=("${account^^}")
done
unset account adapter
PROVISIONER_SETTINGS=("${ACCOUNT_SETTINGS[@]}" MAX_UNITS PROVIDER_CONCURRENCY PROVIDER_TIMEOUT PROVIDER_RATE
  SETTLE PARK_AFTER POLLS_PER_HOUR LOW_DATA_PERCENT)
# These are settings of both ingress and the notifier.
WEBHOOK_SETTINGS=(WEBHOOK_ALLOW WEBHOOK_DENY WEBHOOK_PORTS WEBHOOK_RESOLVERS QR_KEYS_FILE SOURCE_ADDRESSES MAIL_FROM)
NOTIFIER_SETTINGS=(WEBHOOK_TIMEOUT RETRY_SCHEDULE DELIVERY_CONCURRENCY ENDPOINT_FAILURES
  RETENTION_RATE SMTP_URL_FILE CA_FILE)
CONSOLE_SETTINGS=(CONSOLE_ENVIRONMENT CONSOLE_PLACE CONSOLE_SESSION CONSOLE_TRACE_URL CONSOLE_ACTIVATION_CODES
  CONSOLE_PASSWORDS CA_FILE ALERT_URL ALERT_SECRET
  OIDC_{ISSUER,CLIENT_ID,CLIENT_SECRET_FILE,SCOPES,NAME_CLAIM,ROLE_CLAIM,VIEWER,SUPPORT,OPERATOR})
DATABASE_SETTINGS=(DATABASE_CONNECTIONS DATABASE_TIMEOUT REQUIRE_SYNCHRONOUS)
COMMON_SETTINGS=(LOG LOG_FORMAT SHUTDOWN_TIMEOUT TOKIO_WORKER_THREADS OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_PROTOCOL OTEL_TRACES_SAMPLER
  OTEL_TRACES_SAMPLER_ARG)
SERVICE_SETTINGS=("${INGRESS_SETTINGS[@]}" "${PROVISIONER_SETTINGS[@]}" "${WEBHOOK_SETTINGS[@]}" "${NOTIFIER_SETTINGS[@]}"
  "${CONSOLE_SETTINGS[@]}" SANDBOX_DETECT_DUPLICATES "${DATABASE_SETTINGS[@]}" "${COMMON_SETTINGS[@]}")

# `settings_of SERVICE`: its settings, except LISTEN and ADMIN_LISTEN, and no other service's secrets.
settings_of() {
  case $1 in
    sandbox) echo SANDBOX_LEDGER SANDBOX_ACCESS_KEY SANDBOX_SECRET_KEY SANDBOX_{,ESIM_ACCESS_,ZENDIT_}CALLBACK_URL SANDBOX_DETECT_DUPLICATES ;;
    provisioner)
      echo PROVIDERS SANDBOX_{URL,ACCESS_KEY,SECRET_KEY,CALLBACK_TOKEN} "${PROVISIONER_SETTINGS[@]}" MASTER_KEY_PROFILES_FILE
      ;;
    notifier) echo PUBLIC_URL "${WEBHOOK_SETTINGS[@]}" "${NOTIFIER_SETTINGS[@]}" MASTER_KEY_{WEBHOOKS,PROFILES}_FILE ;;
    ingress) echo PUBLIC_URL "${WEBHOOK_SETTINGS[@]}" "${INGRESS_SETTINGS[@]}" MASTER_KEY_{PARTNERS,WEBHOOKS,PROFILES}_FILE ;;
    console)
      echo CONSOLE_URL "${CONSOLE_SETTINGS[@]}"
      # It holds no key unless it shows activation codes.
      [[ ${CONSOLE_ACTIVATION_CODES-} != true ]] || echo MASTER_KEY_PROFILES_FILE MASTER_KEY_FILE
      # Nor does it make new keys of partners, as with deploy/compose.console-keys.yml, unless tests/console/run asks for that.
      [[ ${CONSOLE_MAKES_KEYS-} != true ]] || echo MASTER_KEY_{PARTNERS,WEBHOOKS}_FILE
      ;;
  esac
  [[ $1 == sandbox ]] || echo "${DATABASE_SETTINGS[@]}"
  [[ $1 == sandbox || $1 == console ]] || echo MASTER_KEY_FILE
  echo "${COMMON_SETTINGS[@]}"
}

# --- settings: the environment, else what .local/env remembers, else the default ------------------

SETTINGS=()

# `quoted VALUE` as `. .local/env` needs it: bare where that's safe, else in single quotes.
quoted() {
  local value=$1 quote="'" escaped="'\\''"
  case $value in
    *[!A-Za-z0-9_./:@%+,=-]*)
      value=${value//$quote/"$escaped"}
      value=$quote$value$quote
      ;;
  esac
  printf '%s' "$value"
}

# `unquoted TEXT`: the reverse of `quoted`.
unquoted() {
  local value=$1 quote="'" escaped="'\\''"
  if [[ $value == "$quote"*"$quote" ]]; then
    value=${value:1:${#value}-2}
    value=${value//"$escaped"/$quote}
  fi
  printf '%s' "$value"
}

remembered() {
  local line
  [[ -f $ENV_FILE ]] || return 0
  while IFS= read -r line; do
    [[ $line != "$1="* ]] || unquoted "${line#*=}"
  done <"$ENV_FILE"
}

# `setting NAME DEFAULT` exports NAME and keeps it in .local/env. An empty value restores the default.
setting() {
  local value=${!1-}
  [[ -n ${!1+set} ]] || value=$(remembered "$1")
  derived "$1" "${value:-$2}"
}

# `derived NAME VALUE`: the same for a value that the caller cannot set.
derived() {
  if [[ -n $2 ]]; then
    export "$1=$2"
    SETTINGS+=("$1")
  else
    unset "$1"
  fi
}

# `secret NAME VALUE`: VALUE at the first start, then the remembered one.
secret() {
  local old
  old=$(remembered "$1")
  derived "$1" "${old:-$2}"
}

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
random_base64() { head -c "$1" /dev/urandom | base64 | tr -d '\n'; }

# `save_settings` writes the settings of this run to .local/env.
save_settings() {
  local name
  for name in "${SETTINGS[@]}"; do printf '%s=%s\n' "$name" "$(quoted "${!name}")"; done | replace_env
}

# `save_only NAME…` writes these, and keeps the remembered values of all others.
save_only() {
  local name line
  {
    [[ ! -f $ENV_FILE ]] || while IFS= read -r line; do
      [[ " $* " == *" ${line%%=*} "* ]] || printf '%s\n' "$line"
    done <"$ENV_FILE"
    for name; do printf '%s=%s\n' "$name" "$(quoted "${!name}")"; done
  } | replace_env
}

replace_env() {
  (umask 077 && cat >"$ENV_FILE.new")
  mv "$ENV_FILE.new" "$ENV_FILE"
}

# `load_settings` exports .local/env and sets BIN, the absolute BIN_DIR.
load_settings() {
  local line
  while IFS= read -r line; do export "${line%%=*}=$(unquoted "${line#*=}")"; done <"$ENV_FILE"
  locate_binaries
}

locate_binaries() {
  BIN=${BIN_DIR-}
  [[ $BIN == /* ]] || BIN=$ROOT/$BIN
}

# `own_local_dir` creates the folders, and fails with a hint if another user owns them.
own_local_dir() {
  local path owner
  mkdir -p "$LOCAL_DIR/run" "$LOCAL_DIR/log" "$LOCAL_DIR/data" 2>/dev/null || true
  for path in "$LOCAL_DIR"/{run,log,data,run/lock,env}; do
    while [[ ! -e $path ]]; do path=$(dirname "$path"); done
    [[ ! -w $path ]] || continue
    read -r _ _ owner _ < <(ls -ld "$path")
    fail "$(id -un) cannot write to $path, which belongs to $owner: become $owner, or use your own folder (deploy/local: LOCAL_DIR=…, tests/run: another checkout)"
  done
}

# `lock` allows one up or down at a time. Started processes must not inherit the locks (8, and 7 of tests/run).
lock() {
  own_local_dir
  command -v flock >/dev/null || return 0 # macOS has none
  exec 8>"$LOCAL_DIR/run/lock"
  flock -n 8 && return
  say "another deploy/local command uses $LOCAL_DIR; waiting for it"
  flock -w 1800 8 || fail "the other deploy/local command did not end within 30 minutes"
}

# --- processes: run/NAME.pid, with run/NAME.stamp (birth, fingerprint and ports) beside it --------

# `birth PID`: its start time, or nothing if it has ended or is a zombie. PID and start time identify a process.
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

# `running NAME`: true if our process runs; sets PID, FINGERPRINT and HELD, its ports.
running() {
  local born
  PID='' FINGERPRINT='' HELD=''
  [[ -f $LOCAL_DIR/run/$1.pid && -f $LOCAL_DIR/run/$1.stamp ]] || return 1
  PID=$(<"$LOCAL_DIR/run/$1.pid")
  read -r born FINGERPRINT HELD <"$LOCAL_DIR/run/$1.stamp"
  [[ -n $born && $(birth "$PID") == "$born" ]]
}

# `now_set VARIABLE…`: their current values.
now_set() {
  local name values=()
  for name; do values+=("${!name}"); done
  printf '%s' "${values[*]}"
}

# `replace_environment`: what this shell starts gets ENVIRONMENT (NAME=VALUE…), and of the caller's environment only the
# variables listed here. ENVIRONMENT may hold secrets, so it never becomes a process argument.
replace_environment() {
  local variable
  for variable in $(compgen -e); do
    case $variable in
      PATH | HOME | TMPDIR | TZ | LANG | LC_* | LD_LIBRARY_PATH | RUST_BACKTRACE | SSL_CERT_* | *_proxy | *_PROXY) ;;
      *) export -n "${variable?}" ;;
    esac
  done
  [[ -z ${ENVIRONMENT[*]-} ]] || export -- "${ENVIRONMENT[@]}"
}

# `launch NAME COMMAND…` starts it detached with ENVIRONMENT. It keeps a running process if command, ENVIRONMENT and
# program are unchanged. `env` and `setpriv` in COMMAND replace themselves by the
# program (exec), so the process id is that of the program.
launch() {
  local name=$1 program=${*: -1} fingerprint session=nohup
  shift
  [[ -z ${PROGRAM-} ]] || program=$PROGRAM
  fingerprint=$(printf '%s\n' "$@" ${ENVIRONMENT[@]+"${ENVIRONMENT[@]}"} | cksum | tr ' ' -)
  if running "$name"; then
    if [[ $FINGERPRINT == "$fingerprint" && ! $program -nt $LOCAL_DIR/run/$name.pid ]]; then
      say "$name: already running (pid $PID)"
      return
    fi
    say "$name: its program or settings changed, restarting"
    stop "$name"
  fi
  ! command -v setsid >/dev/null || session=setsid
  # What `died` shows begins here.
  touch "$LOCAL_DIR/log/$name.log"
  STARTED_AT[$name]=$(wc -c <"$LOCAL_DIR/log/$name.log")
  (
    cd /
    replace_environment
    exec "$session" "$@"
  ) </dev/null >>"$LOCAL_DIR/log/$name.log" 2>&1 7>&- 8>&- &
  PID=$! LAUNCHED+=" $name "
  printf '%s\n' "$PID" >"$LOCAL_DIR/run/$name.pid"
  # shellcheck disable=SC2046  # names of variables
  printf '%s %s %s\n' "$(birth "$PID")" "$fingerprint" "$(now_set $(ports_of "$name"))" >"$LOCAL_DIR/run/$name.stamp"
}

# `answers PORT`: true if a process on this machine listens there.
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# `await NAME CONDITION…` waits for the condition; fails at the deadline, or at once when the process ends.
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
  tail -c "+$((${STARTED_AT[$1]:-0} + 1))" "$LOCAL_DIR/log/$1.log" | tail -n 15 | sed 's/^/    /' >&2
  exit 1
}

# `stop NAME` sends the stop signal and waits. It kills the process only after 35 s, when the deadline of the services
# themselves (SHUTDOWN_TIMEOUT) has passed.
stop() {
  local name=$1 signal=TERM began=$SECONDS
  [[ $name != postgres ]] || signal=INT # fast shutdown: does not wait for clients
  if running "$name"; then
    kill -s "$signal" "$PID"
    while running "$name"; do
      if ((SECONDS - began >= 35)); then
        say "$name: still running 35 s after SIG$signal, killing it"
        kill -s KILL "$PID" 2>/dev/null || true
        began=$SECONDS
      fi
      sleep 0.05
    done
    say "$name: stopped"
  fi
  rm -f "$LOCAL_DIR/run/$name.pid" "$LOCAL_DIR/run/$name.stamp"
}

# `users_of FOLDER…`: the processes that have a file in the folders open or work there, and our programs that were told to
# use them or write to LOCAL_DIR/log, one a line. nats-server, for example, has no file of its storage open while no
# stream is stored there. On a system without /proc nobody knows.
users_of() {
  local process pid folder folders=()
  [[ -d /proc/self/fd ]] || return 0
  for folder; do folders+=(-o -lname "$folder" -o -lname "$folder/*"); done
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    [[ -n $(find "$process/cwd" "$process/fd" -maxdepth 1 \( -false "${folders[@]}" \) -print -quit 2>/dev/null) ]] ||
      is_ours_in "$process" "$@" || continue
    printf '  pid %s: %s\n' "$pid" "$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null | cut -c 1-120)"
  done
}

# `is_ours_in PROCESS FOLDER…`: true if it is one of our programs and writes to LOCAL_DIR/log, or if one of its arguments
# lies in a folder.
is_ours_in() {
  local process=$1 name argument folder
  name=$(cat "$process/comm" 2>/dev/null) || return 1
  is_process "$name" || [[ $name == upstreams ]] || return 1
  [[ $(readlink "$process/fd/2" 2>/dev/null) != "$LOCAL_DIR/log/"* ]] || return 0
  while IFS= read -r -d '' argument; do
    for folder in "${@:2}"; do [[ $argument != "$folder"?(/*) ]] || return 0; done
  done 2>/dev/null <"$process/cmdline"
  return 1
}

http_ok() { curl --fail --silent --max-time 2 --output /dev/null "$1"; }
