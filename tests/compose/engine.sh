# Finds a container engine, or installs and starts one for this run. tests/compose/run sources it.
# shellcheck shell=bash


PINNED='docker.io docker-cli docker-compose docker-buildx'

engine_answers() { docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; }

may_install() { [[ $(id -u) == 0 && -f /etc/debian_version ]] && command -v apt-get >/dev/null; }

# `trixie_source`: this machine's Debian source, changed to release 13. So no host is named here.
trixie_source() {
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f $file ]] || continue
    awk 'BEGIN { RS = ""; ORS = "\n\n" } /(^|\n)Types: deb/ && /(^|\n)URIs:[^\n]*debian/ && /(^|\n)Suites:/ && !/-security/ { print; exit }' "$file" |
      sed -E '/^(#|$)/d; s/^Suites:.*/Suites: trixie/; s/^Components:.*/Components: main/'
  done | awk 'BEGIN { RS = "" } { print; exit }' | grep . && return
  # The older format, one line per source.
  sed -nE 's/^deb (\[[^]]*\] )?([^ ]+debian\/?) +[a-z]+ .*/deb \1\2 trixie main/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1 | grep .
}

# Installs Debian 13's engine, on Debian 12 too. Nothing else comes from Debian 13, and the machine's sources are
# restored afterwards. The installed service is not started: this run starts its own engine.
install_engine() {
  local source=/etc/apt/sources.list.d/esim-trixie.sources preferences=/etc/apt/preferences.d/esim-trixie
  local policy=/usr/sbin/policy-rc.d codename status=0
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  if [[ $codename == bookworm ]]; then
    trixie_source >"$WORK/trixie.source" || fail "no Debian source is configured on this machine"
    [[ $(head -c 4 "$WORK/trixie.source") != 'deb ' ]] || source=${source%.sources}.list
    cp "$WORK/trixie.source" "$source"
    # shellcheck disable=SC2086  # several names
    printf 'Package: *\nPin: release n=trixie\nPin-Priority: 100\n\nPackage: %s\nPin: release n=trixie\nPin-Priority: 600\n' \
      "$PINNED" >"$preferences"
  fi
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  else
    policy=''
  fi
  # In a subshell, because a failure ends it.
  # shellcheck disable=SC2086
  (apt_install $PINNED iptables) || status=$?
  rm -f "$source" "$preferences" ${policy:+"$policy"}
  return "$status"
}

# `start_engine` starts a dockerd for this run, with its own folders.
start_engine() {
  local began=$SECONDS
  mkdir -p "$WORK/engine"
  # Image layers are kept for the next run.
  setsid dockerd --host "unix://$WORK/engine/docker.sock" --data-root "$ENGINE_DATA" --exec-root "$WORK/engine/exec" \
    --pidfile "$WORK/engine/pid" >"$LOGS/dockerd.log" 2>&1 </dev/null 7>&- 8>&- &
  ENGINE_PID=$!
  export DOCKER_HOST=unix://$WORK/engine/docker.sock
  until engine_answers; do
    kill -0 "$ENGINE_PID" 2>/dev/null || { tail -n 5 "$LOGS/dockerd.log" >&2 && fail "dockerd ended; see $LOGS/dockerd.log"; }
    ((SECONDS - began < 60)) || fail "dockerd was not ready after 60 s; see $LOGS/dockerd.log"
    sleep 0.2
  done
  weigh_containers
}

# The kernel gives all containers together no more of the processors than one process of the machine, so beside a browser
# fifteen programs would starve. `weigh_containers` lets them count as twenty, in the first version of control groups and
# in the second one. Where neither is writable, they stay as they are.
weigh_containers() {
  local groups=/sys/fs/cgroup
  [[ ! -d $groups/cpu ]] || mkdir -p "$groups/cpu/docker" 2>/dev/null || true
  [[ ! -w $groups/cpu/docker/cpu.shares ]] || echo 20480 >"$groups/cpu/docker/cpu.shares"
  [[ ! -w $groups/docker/cpu.weight ]] || echo 2000 >"$groups/docker/cpu.weight"
}

stop_engine() {
  local began=$SECONDS
  [[ -n ${ENGINE_PID-} ]] || return 0
  kill "$ENGINE_PID" 2>/dev/null || true
  while kill -0 "$ENGINE_PID" 2>/dev/null; do
    ((SECONDS - began < 30)) || { kill -KILL "$ENGINE_PID" 2>/dev/null || true; break; }
    sleep 0.2
  done
  ENGINE_PID=''
}

# `find_engine`: exit status 77 if there is none and none may be installed.
find_engine() {
  if engine_answers; then
    say "engine: the one that is there, $(docker version --format '{{.Server.Version}}')"
    return
  fi
  if ! command -v dockerd >/dev/null || ! docker compose version >/dev/null 2>&1; then
    may_install || { say "SKIPPED: there is no container engine here, and none may be installed (that needs root on Debian)" && exit 77; }
    install_engine || fail "the container engine could not be installed"
  fi
  engine_answers || start_engine
  say "engine: $(docker version --format '{{.Server.Version}}'), Compose $(docker compose version --short), storage $(docker info --format '{{.Driver}}')"
}
