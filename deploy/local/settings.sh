# Gathers and checks the settings of the local system and its ports, before any process is touched.
# deploy/local/up sources it after lib.sh.
# shellcheck shell=bash

# --- gathered -------------------------------------------------------------------------------------

# A changed LOCAL_PORTS moves every port, except those that the caller also sets to a new value. (`. .local/env`
# exports the remembered values, so those do not count.)
gather_ports() {
  local row name default place moved=false
  setting LOCAL_PORTS ''
  [[ ${LOCAL_PORTS-} == "$(remembered LOCAL_PORTS)" ]] || moved=true
  for row in "${PORTS[@]}"; do
    read -r name default place <<<"$row"
    ! is_block "${LOCAL_PORTS-}" || default=$((LOCAL_PORTS + place))
    if [[ $moved == true && (-z ${!name-} || ${!name} == "$(remembered "$name")") ]]; then
      derived "$name" "$default"
    else
      setting "$name" "$default"
    fi
  done
}

gather_settings() {
  local name password port url=http://127.0.0.1 played
  gather_ports
  secret SANDBOX_ACCESS_KEY "$(random_hex 16)"
  secret SANDBOX_SECRET_KEY "$(random_base64 32)"
  secret SANDBOX_CALLBACK_TOKEN "$(random_hex 16)"
  # The accounts of these providers are at the sandbox, or at tests/upstreams, which speaks further protocols.
  setting SANDBOX_AS ''
  played=${SANDBOX_AS-}
  for name in ${played//,/ }; do
    name=${name//-/_}
    export "${name^^}_URL=$url:$SANDBOX_PORT" "${name^^}_ACCESS_KEY=$SANDBOX_ACCESS_KEY" \
      "${name^^}_SECRET_KEY=$SANDBOX_SECRET_KEY" "${name^^}_CALLBACK_TOKEN=$SANDBOX_CALLBACK_TOKEN"
  done
  for name in "${SERVICE_SETTINGS[@]}"; do
    case $name in
      WEBHOOK_ALLOW) setting "$name" 127.0.0.0/8 ;; # the demo's and the load tool's receivers
      PLACEMENT_WAIT) setting "$name" 2s ;;
      *) setting "$name" '' ;;
    esac
  done

  secret POSTGRES_PASSWORD "$(random_hex 16)"
  for name in "${ROLES[@]}"; do
    password=$(upper "$name")_DATABASE_PASSWORD
    secret "$password" "$(random_hex 16)"
    derived "$(upper "$name")_DATABASE_URL" "postgres://esim_$name:${!password}@127.0.0.1:$POSTGRES_PORT/esim"
  done
  unset MASTER_KEY MASTER_KEY_FILE
  for name in "${PURPOSES[@]}"; do
    unset "MASTER_KEY_$(upper "$name")_FILE"
    derived "MASTER_KEY_$(upper "$name")_FILE" "$LOCAL_DIR/master-$name.key"
  done
  for name in "${ROLES[@]}"; do
    [[ $name != console ]] || continue # it talks to PostgreSQL only
    password=$(upper "$name")_NATS_PASSWORD
    secret "$password" "$(random_hex 16)"
    derived "$(upper "$name")_NATS_URL" "nats://$name:${!password}@127.0.0.1:$NATS_PORT"
  done

  derived BASE_URL "$url:$INGRESS_PORT"
  derived PUBLIC_URL "$BASE_URL"
  for name in INGRESS_ADMIN PROVISIONER PROVISIONER_ADMIN NOTIFIER_ADMIN CONSOLE CONSOLE_ADMIN SANDBOX SANDBOX_ADMIN NATS_MONITOR; do
    port=${name}_PORT
    derived "${name}_URL" "$url:${!port}"
  done
  derived SANDBOX_CALLBACK_URL "$PROVISIONER_URL/callbacks/sandbox/$SANDBOX_CALLBACK_TOKEN"
  derived SANDBOX_ESIM_ACCESS_CALLBACK_URL "$PROVISIONER_URL/callbacks/esim-access/$SANDBOX_CALLBACK_TOKEN"
  derived SANDBOX_ZENDIT_CALLBACK_URL "$PROVISIONER_URL/callbacks/zendit/$SANDBOX_CALLBACK_TOKEN"
  derived SANDBOX_LEDGER "$LOCAL_DIR/data/sandbox-ledger"
  derived DATABASE_URL "postgres://esim:$POSTGRES_PASSWORD@127.0.0.1:$POSTGRES_PORT/esim"
  derived DATABASE_ADMIN_URL "postgres://postgres:$POSTGRES_PASSWORD@127.0.0.1:$POSTGRES_PORT/postgres"
  derived NATS_URL "$OPERATOR_NATS_URL"
}

# --- checked --------------------------------------------------------------------------------------

COMPLAINTS=()
complain() { COMPLAINTS+=("$*"); }

is_port() { [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] && (($1 <= 65535)); }
is_block() { is_port "$1" && (($1 <= 65535 - 91)); }

# `is_privileged PORT`: true if this user may not listen there.
is_privileged() {
  local first=1024
  read -r first 2>/dev/null </proc/sys/net/ipv4/ip_unprivileged_port_start || true
  [[ $(id -u) != 0 ]] && (($1 < first))
}

check_ports() {
  local row name seen=' ' other
  [[ -z ${LOCAL_PORTS-} ]] || is_block "$LOCAL_PORTS" || complain "LOCAL_PORTS=$LOCAL_PORTS is not a number from 1 to $((65535 - 91))"
  for row in "${PORTS[@]}"; do
    name=${row%% *}
    if ! is_port "${!name}"; then
      complain "$name=${!name} is not a port, a number from 1 to 65535"
    elif is_privileged "${!name}"; then
      complain "$name=${!name} is a port of the system, on which $(id -un) may not listen: take one from 1024 on"
    elif [[ $seen == *" ${!name}="* ]]; then
      other=${seen##* "${!name}="}
      complain "$name and ${other%% *} are both ${!name}"
    else
      seen+="${!name}=$name "
    fi
  done
}

check_providers() {
  local provider rest=${PROVIDERS:-sandbox}, seen=, name known prefix
  known=("${ACCOUNTS[@],,}")
  known=(sandbox "${known[@]//_/-}")
  while [[ -n $rest ]]; do
    provider=${rest%%,*} rest=${rest#*,}
    if [[ $seen == *",$provider,"* ]]; then
      complain "PROVIDERS names $provider twice"
      continue
    fi
    seen+=$provider,
    if [[ " ${known[*]} " != *" $provider "* ]]; then
      complain "PROVIDERS names \"$provider\": known are sandbox$(printf ' and %s' "${known[@]:1}")"
    elif [[ $provider != sandbox ]]; then
      prefix=${provider//-/_}
      for name in "${ACCOUNT_SETTINGS[@]}"; do
        [[ $name == "${prefix^^}"_* && $name != *_CALLBACK_TOKEN && -z ${!name-} ]] || continue
        complain "PROVIDERS names $provider, but $name is not set"
      done
    fi
  done
}

# These checks are rough, but name all errors before anything is built. Afterwards each program checks its settings
# exactly (check_exactly in deploy/local/up).
check_service_settings() {
  local name span='([0-9]+ ?[a-zA-Zµ]+ ?)+' pattern meaning
  for name in "${SERVICE_SETTINGS[@]}"; do
    [[ -n ${!name-} && ${!name} != *[[:cntrl:]]* ]] || continue
    case $name in
      PLACEMENT_WAIT | QUEUE_DEADLINE | CONSOLE_SESSION | *_TIMEOUT | SETTLE | PARK_AFTER)
        pattern="(0|$span)" meaning='a duration, such as 2s or 500ms'
        ;;
      RETRY_SCHEDULE) pattern="$span(, ?$span)*" meaning='durations with commas between them, such as 5s,5m' ;;
      MAX_* | *_CONCURRENCY | *_CONNECTIONS) pattern='[1-9][0-9]{0,8}' meaning='a number of at least 1' ;;
      *_FAILURES | *_RATE | *_PER_SECOND | *_PER_MINUTE) pattern='[0-9]{1,9}' meaning='a number' ;;
      OTEL_EXPORTER_OTLP_ENDPOINT) pattern='https?://[^ ]+' meaning='an http or https address' ;;
      OTEL_EXPORTER_OTLP_PROTOCOL) pattern='(grpc|http/protobuf)' meaning='grpc or http/protobuf' ;;
      LOG_FORMAT) pattern='(auto|text|json)' meaning='auto, text or json' ;;
      SANDBOX_DETECT_DUPLICATES | WEBHOOK_HTTP_LIVE | CONSOLE_ACTIVATION_CODES | CONSOLE_PASSWORDS) pattern='(true|false)' meaning='true or false' ;;
      BRAND) pattern='[A-Za-z0-9-]+' meaning='letters, digits and -' ;;
      *_URL) pattern='https?://[^ ]+' meaning='an http or https address' ;;
      SANDBOX_SECRET_KEY | USIMSA_SECRET_KEY) pattern='[A-Za-z0-9+/]+=*' meaning='Base64' ;;
      *_CALLBACK_TOKEN) pattern='[A-Za-z0-9_-]{16,}' meaning='at least 16 letters, digits, - or _' ;;
      *) continue ;;
    esac
    [[ ${!name} =~ ^$pattern$ ]] && continue
    case $name in
      *_KEY | *_TOKEN) complain "$name is not $meaning" ;;
      *) complain "$name=${!name} is not $meaning" ;;
    esac
  done
}

# `check_settings` fails with a list of all errors at once, so that they can be fixed together.
check_settings() {
  local name
  for name in "${SETTINGS[@]}"; do
    [[ ${!name} != *[[:cntrl:]]* ]] || complain "$name holds a line break or another control character"
  done
  check_ports
  check_providers
  check_service_settings
  ((${#COMPLAINTS[@]} == 0)) || fail "nothing was started, stopped or saved:"$'\n'"$(printf '  %s\n' "${COMPLAINTS[@]}")"
}

# `environment NAME` sets ENVIRONMENT to the settings of a service.
environment() {
  local setting variable
  ENVIRONMENT=()
  for setting in $(settings_of "$1"); do
    [[ -z ${!setting-} ]] || ENVIRONMENT+=("$setting=${!setting}")
  done
  for variable in DATABASE_URL NATS_URL; do
    setting=$(upper "$1")_$variable
    [[ -z ${!setting-} ]] || ENVIRONMENT+=("$variable=${!setting}")
  done
  for variable in $(ports_of "$1"); do
    setting=LISTEN
    [[ $variable != *_ADMIN_PORT ]] || setting=ADMIN_LISTEN
    ENVIRONMENT+=("$setting=127.0.0.1:${!variable}")
  done
}

# `check_exactly SERVICE…` has each program check the settings that it would get, and fails with all that is refused.
check_exactly() {
  local name told refused='' ENVIRONMENT
  for name; do
    environment "$name"
    told=$(
      replace_environment
      "$BIN/$(program_of "$name")" config show 2>&1 >/dev/null
    ) || refused+=$'\n'"  ${told:-$name refuses its settings}"
  done
  [[ -z $refused ]] || fail "nothing was started, stopped or saved:$refused"
}

# --- the ports ------------------------------------------------------------------------------------

# `ports_held NAME`: the ports of our own running process.
ports_held() {
  local variable held=''
  running "$1" || return 0
  if [[ -z $HELD ]]; then # started before stamps held the ports
    for variable in $(ports_of "$1"); do held+=" $(remembered "$variable")"; done
    HELD=${held# }
  fi
  printf '%s' "$HELD"
}

# `unusable PORT…` prints those on which no server can listen. Besides those where one listens already, these are the ports
# of outgoing connections, also for a minute after their end. So the ports are bound, as the servers do it.
unusable() {
  if command -v python3 >/dev/null; then
    # After Ctrl-C Python would print where it was.
    python3 - "$@" 2>/dev/null <<'PYTHON'
import socket, sys

for port in sys.argv[1:]:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", int(port)))
            tried.listen()
        except OSError:
            print(port)
PYTHON
  else
    local port
    for port; do ! answers "$port" || printf '%s\n' "$port"; done
  fi
}

# `holder_of PORT`: what holds it, as far as this user may know: by /proc on Linux, and elsewhere by lsof, which macOS has.
holder_of() {
  local port=$1 rows state inode process pid
  if [[ ! -r /proc/net/tcp ]]; then
    pid=$(lsof -nP -t -iTCP:"$port" -sTCP:LISTEN 2>/dev/null | head -n 1) || true
    [[ -z $pid ]] || printf 'pid %s listens there: %s' "$pid" "$(ps -o args= -p "$pid" 2>/dev/null | cut -c 1-120)"
    return 0
  fi
  rows=$(awk -v port="$(printf ':%04X' "$port")" 'substr($2, length($2) - 4) == port { print $4, $10 }' /proc/net/tcp{,6} 2>/dev/null) || true
  # Several connections may share a port. A listener (state 0A) says most, and one that has ended (inode 0) least.
  read -r state inode < <(grep '^0A ' <<<"$rows" || grep -v ' 0$' <<<"$rows" || printf '%s\n' "$rows") || true
  [[ -n $state ]] || return 0
  process=$(find /proc/[0-9]*/fd -maxdepth 1 -lname "socket:\\[$inode\\]" -print -quit 2>/dev/null) || true
  pid=${process#/proc/} pid=${pid%%/*}
  # A connection that nobody has open any more has ended, whichever state it is in.
  [[ $inode != 0 ]] || state=06
  case $state:$pid in
    0A:) printf 'a program of another user listens there' ;;
    0A:*) printf 'pid %s listens there: %s' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-120)" ;;
    06:*) printf 'a connection that has ended keeps it for up to a minute more: wait, and try again' ;;
    *:) printf 'a connection of another user has it until it ends' ;;
    *) printf 'a connection of pid %s has it until it ends: %s' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-120)" ;;
  esac
}

# `check_free NAME…`: fails with a list of all needed ports that are taken, and with what holds them.
check_free() {
  local name variable port own=' ' ports=() taken='' low high advice=''
  for name; do own+="$(ports_held "$name") "; done
  for name; do
    for variable in $(ports_of "$name"); do
      [[ $own == *" ${!variable} "* ]] || ports+=("${!variable}:$variable")
    done
  done
  # shellcheck disable=SC2046  # numbers
  for port in $(unusable ${ports[@]+"${ports[@]%%:*}"}); do
    for variable in "${ports[@]}"; do
      [[ $variable != "$port:"* ]] || taken+=$'\n'"  $port (${variable#*:}) $(holder_of "$port")"
    done
    read -r low high 2>/dev/null </proc/sys/net/ipv4/ip_local_port_range || continue
    ((port < low || port > high)) ||
      advice=" Ports from $low to $high are also given to outgoing connections, so take others."
  done
  [[ -z $taken ]] || fail "these ports are taken:$taken
  Set other ports with these variables, or move all ports: LOCAL_PORTS=23000 uses 23022 to 23091.$advice"
}

# `leave_ports NAME…` stops processes whose ports change, because another process may need the old ones.
leave_ports() {
  local i name held
  for ((i = $#; i > 0; i--)); do
    name=${!i}
    held=$(ports_held "$name")
    # shellcheck disable=SC2046  # names of variables
    if [[ -n $held && $held != "$(now_set $(ports_of "$name"))" ]]; then
      say "$name: its ports changed, restarting"
      stop "$name"
    fi
  done
}
