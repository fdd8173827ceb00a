#!/bin/sh
# A partner's client in plain shell, with openssl and curl.
#
#   BASE_URL=… ACCESS_KEY=… SECRET_KEY=… docs/examples/esim.sh order EXTERNAL_ORDER_ID OPTION_ID QTY
#   … docs/examples/esim.sh show EXTERNAL_ORDER_ID
#   … docs/examples/esim.sh redeliver TOPUP_ID
#   … docs/examples/esim.sh options
#   … docs/examples/esim.sh webhook URL
#
# It prints the body of the answer. If the answer is not a 2xx, it also prints the status and the error code on standard
# error, and fails. It sends each request once. An error without a code comes from something in between, such as a proxy,
# and counts as no answer. After a 5xx or without an answer, run the same `order` again with the same EXTERNAL_ORDER_ID.
# The error code external_order_id_taken then means that the order is stored, and `show` shows it. EXTERNAL_ORDER_ID may
# consist of letters, digits, `-`, `.` and `_` only, because nothing is percent-encoded here.
set -eu

api=/api/v1/api_partner

# fail LINE: ends the program with one line.
fail() {
  echo "$1" >&2
  exit 2
}

# signed METHOD PATH [BODY]: sends a signed request. The signature covers the body by its SHA-256.
signed() {
  for name in BASE_URL ACCESS_KEY SECRET_KEY; do
    eval "[ -n \"\${$name-}\" ]" || fail "$name is not set: set this environment variable to the value that we gave you"
  done
  case $BASE_URL in
    http://* | https://*) ;;
    *) fail "BASE_URL does not begin with http:// or https://" ;;
  esac
  timestamp=$(date +%s)
  key=$(printf %s "$SECRET_KEY" | openssl base64 -d -A | od -An -v -tx1 | tr -d ' \n')
  [ -n "$key" ] || fail "SECRET_KEY is not Base64 text: use it exactly as you got it"
  digest=$(printf %s "${3-}" | openssl dgst -sha256 | sed 's/^.* //')
  signature=$(printf '%s\n%s\n%s\n%s\n%s' "$1" "$2" "$timestamp" "$ACCESS_KEY" "$digest" |
    openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" | sed 's/^.* //')
  head=$(mktemp)
  trap 'rm -f "$head"' EXIT
  set -- "$1" "$2" ${3+--data-binary "$3"}
  method=$1 path=$2
  shift 2
  curl --silent --show-error --max-time 30 --request "$method" --dump-header "$head" \
    --header "X-Service-Access-Key: $ACCESS_KEY" \
    --header "X-Service-Signature: $signature" \
    --header "X-Service-Timestamp: $timestamp" \
    --header "X-Service-Content-SHA256: $digest" \
    --header 'Content-Type: application/json' \
    "$@" "${BASE_URL%/}$path"
  echo
  status=$(sed -n '1s/^[^ ]* \([0-9]*\).*/\1/p' "$head")
  case $status in
    2*) ;;
    *)
      code=$(tr -d '\r' <"$head" | sed -n 's/^[Xx]-[Ss]ervice-[Ee]rror: //p')
      echo "HTTP status $status ${code:-without X-Service-Error, which is not of the service, so it is unknown what the request did}" >&2
      exit 1
      ;;
  esac
}

arguments=${1-}/$#
case $arguments/${4-} in
  order/4/*[!0-9]* | order/4/) arguments=wrong ;;
esac
case $arguments in
  order/4 | show/2 | redeliver/2)
    for id in "$2" "${3-}"; do
      case $id in
        . | .. | *[!A-Za-z0-9._-]*) fail "$id: this example sends only ids of letters, digits, -, . and _, because it encodes nothing" ;;
      esac
    done
    ;;
  webhook/2)
    case $2 in
      *[\"\\]*) fail "$2: this example sends no URL with a quotation mark or a backslash, because it encodes nothing" ;;
    esac
    ;;
esac
case $arguments in
  order/4)
    body=$(printf '{"external_order_id":"%s","products":[{"option_id":"%s","qty":%s}]}' "$2" "$3" "$4")
    signed POST "$api/orders" "$body"
    ;;
  show/2) signed GET "$api/orders/$2" ;;
  redeliver/2) signed POST "$api/topups/$2/redeliver" ;;
  options/1) signed GET "$api/options" ;;
  webhook/2) signed PUT "$api/webhook" "$(printf '{"url":"%s"}' "$2")" ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
