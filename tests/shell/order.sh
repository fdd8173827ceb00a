#!/bin/sh
# tests/shell/order.sh BASE_URL ACCESS_KEY SECRET_KEY OPTION_ID QTY: orders QTY units of an option.
#
# A partner's client, written from the specification alone. It prints the response body. The exit status
# is 0 if the order was created; otherwise it prints the HTTP status on standard error.
set -eu
[ $# -eq 5 ] || {
  sed -n '2s/^# //p' "$0" >&2
  exit 2
}
base_url=${1%/} access_key=$2 secret_key=$3 option_id=$4 qty=$5

path=/api/v1/api_partner/orders
timestamp=$(date +%s)
body=$(printf '{"external_order_id":"shell-%s-%s","products":[{"option_id":"%s","qty":%s}]}' \
  "$timestamp" $$ "$option_id" "$qty")

key=$(printf %s "$secret_key" | openssl base64 -d -A | od -An -v -tx1 | tr -d ' \n')
signature=$(printf 'POST\n%s\n%s\n%s' "$path" "$timestamp" "$access_key" |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" | sed 's/^.* //')

answer=$(curl --silent --show-error --noproxy '*' --max-time 30 --write-out '\n%{http_code}' \
  --header "X-Service-Access-Key: $access_key" \
  --header "X-Service-Signature: $signature" \
  --header "X-Service-Timestamp: $timestamp" \
  --header 'Content-Type: application/json' \
  --data-binary "$body" "$base_url$path")
status=${answer##*
}
printf '%s\n' "${answer%?"$status"}"
[ "$status" = 201 ] || {
  echo "HTTP status $status" >&2
  exit 1
}
