# Signatures of images and of the chart, for deploy/release and deploy/helm/publish. Source it after deploy/local/lib.sh.
# shellcheck shell=bash
#
# cosign signs with a key of ours: a file of `cosign generate-key-pair` (its password is in COSIGN_PASSWORD) or a key of a
# KMS (awskms://…, hashivault://… and so on). Nothing is written to sigstore's public log, because it would publish the
# names of our images, and because who verifies has our public key. docs/release.md has the commands that verify.

# `cosign_ready`: false if cosign is missing or too old.
cosign_ready() { cosign version >/dev/null 2>&1; }

# `unlogged COMMAND` prints the options with which a command of cosign writes to no public log. cosign 3 asks the public
# instance which log to use, unless it is told otherwise; cosign 2 does not know that option.
unlogged() {
  printf '%s\n' --yes --tlog-upload=false
  [[ $(cosign "$1" --help) != *--use-signing-config=* ]] || printf '%s\n' --use-signing-config=false
}

# `sign KEY REFERENCE`: the reference has a digest, because a tag may name another image a moment later.
sign() {
  local options
  mapfile -t options < <(unlogged sign)
  cosign sign "${options[@]}" --key "$1" "$2"
}

# `attest_components KEY REFERENCE FILE`: the signed list of an image's components is kept beside the image.
attest_components() {
  local options
  mapfile -t options < <(unlogged attest)
  cosign attest "${options[@]}" --key "$1" --type cyclonedx --predicate "$3" "$2"
}
