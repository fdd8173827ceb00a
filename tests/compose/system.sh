# The system under test: brought up, looked at, hurt. Sourced by tests/compose/run.
# shellcheck shell=bash

# How long anything may take that is waited for.
PATIENCE=90

# `project_settings`: a project of its own, so that nothing of a running one is touched, and a free port.
project_settings() {
  export COMPOSE_PROJECT_NAME=esim-test-$$ COMPOSE_FILE=$ROOT/docker-compose.yml IMAGES=esim-test VERSION=$$
  local port
  for ((port = ${COMPOSE_PORT:-17080}; ; port++)); do answers "$port" || break; done
  PORT=$port
  export PUBLISH=127.0.0.1:$PORT PUBLIC_URL=http://127.0.0.1:$PORT
  # Short enough for a test. Receivers are on this machine.
  export WEBHOOK_ALLOW=10.0.0.0/8,172.16.0.0/12,192.168.0.0/16 PROVIDER_TIMEOUT=2s SETTLE=8s RETRY_SCHEDULE=5s,5s,5s,10s,10s,20s,20s
  # Made by the system itself.
  unset MASTER_KEY POSTGRES_PASSWORD SECRETS DATABASE_URL NATS_URL COMPOSE_PROFILES
}

compose() { docker compose "$@" 2> >(cat >>"$LOGS/compose.log"); }

# `containers SERVICE`: the ids of those that run.
containers() { docker ps --quiet --no-trunc --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --filter "label=com.docker.compose.service=$1"; }
container() { containers "$1" | head -n 1; }
address() { docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$1"; }
health() { docker inspect --format '{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}' "$1" 2>/dev/null; }
restarts() { docker inspect --format '{{.RestartCount}}' "$1"; }

# `until_true WHAT CONDITION…`
until_true() {
  local what=$1 began=$SECONDS
  shift
  until "$@"; do
    ((SECONDS - began < PATIENCE)) || fail "waited $PATIENCE s in vain for $what"
    sleep 0.2
  done
}

is_healthy() { [[ $(health "$1") == healthy ]]; }
answers_http() { curl --fail --silent --max-time 2 --output /dev/null "$1"; }

# `check_images`: what deploy/Dockerfile promises of each.
check_images() {
  local program image size user
  for program in "${PROGRAMS[@]}"; do
    image=$IMAGES/$program:$VERSION
    size=$(docker image inspect --format '{{.Size}}' "$image")
    user=$(docker image inspect --format '{{.Config.User}}' "$image")
    [[ $user == 65532:65532 ]] || fail "$image runs as $user"
    say "$(printf '%-11s %3d MB, %s' "$program" $((size / 1000000)) "$(docker run --rm --network none --read-only "$image" --version)")"
    # Neither the image nor what it is made of may hold a shell, or the checks would prove nothing.
    ! docker run --rm --network none --entrypoint /bin/sh "$image" -c true 2>/dev/null || fail "$image holds a shell"
  done
}

bring_up() {
  local service
  docker compose config --quiet || fail "docker-compose.yml is not valid"
  docker compose --profile observability --profile tools config --quiet || fail "the profiles of docker-compose.yml are not valid"
  docker compose up --wait --no-build --pull never --quiet-pull 2>"$LOGS/up.log" || { tail -n 20 "$LOGS/up.log" >&2 && fail "docker compose up --wait failed"; }
  for service in postgres nats sandbox provisioner notifier ingress proxy; do
    is_healthy "$(container "$service")" || fail "$service is not healthy after up --wait"
  done
  answers_http "http://127.0.0.1:$PORT/qr/LPA%3A1%24smdp.example%24A/300" || fail "the proxy doesn't reach ingress"
  GATEWAY=$(docker network inspect --format '{{range .IPAM.Config}}{{.Gateway}}{{end}}' "${COMPOSE_PROJECT_NAME}_default")
}

# Early, so that it has found everybody when it is asked.
prometheus_up() {
  docker compose --profile observability up --wait --no-build --pull never prometheus 2>>"$LOGS/up.log" ||
    { tail -n 20 "$LOGS/up.log" >&2 && fail "Prometheus doesn't come up"; }
}

# What the proxy promises, with an ingress that takes a request and closes the connection.
proxy_manners() {
  local network=$COMPOSE_PROJECT_NAME-manners image ingress proxy url status answer
  image=${PROXY_IMAGE:-$(image_of PROXY_IMAGE)}
  docker network create --label "esim-test=$COMPOSE_PROJECT_NAME" "$network" >/dev/null
  ingress=$(docker run --detach --rm --label "esim-test=$COMPOSE_PROJECT_NAME" --network "$network" --network-alias ingress --entrypoint sh "$image" -c '
    while true; do nc -l -p 9090 -e sh -c "echo HTTP/1.0 200 OK; echo"; done &
    while true; do nc -l -p 8080 -e sh -c "read line; echo \"\$line\" >>/tmp/requests"; done')
  proxy=$(docker run --detach --rm --label "esim-test=$COMPOSE_PROJECT_NAME" --network "$network" --read-only --cap-drop ALL \
    --volume "$ROOT/deploy/proxy/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro" "$image")
  url=http://$(address "$proxy"):8080
  until_true 'the proxy to find its ingress' answers_http "http://$(address "$proxy"):8405/healthz"

  status=0
  curl --silent --max-time 10 --request POST --data '{}' "$url/api/v1/api_partner/orders" >"$WORK/answer" || status=$?
  [[ $status == 52 && ! -s $WORK/answer ]] || fail "the proxy made an answer up (curl: $status): $(cat "$WORK/answer")"
  curl --silent --max-time 10 "$url/qr/LPA%3A1%24smdp.example%24CODE-IN-A-PATH/300" || true
  curl --silent --max-time 10 --request POST "$url/callbacks/sandbox/TOKEN-IN-A-PATH" >/dev/null || true
  docker exec "$ingress" cat /tmp/requests >"$WORK/requests"
  [[ $(grep -c '^POST /api' "$WORK/requests") == 1 ]] || fail "the proxy sent a POST more than once: $(cat "$WORK/requests")"

  docker kill "$ingress" >/dev/null
  answer=$(curl --silent --max-time 10 --request POST --data '{}' --write-out ' %{http_code} %{content_type}' "$url/api/v1/api_partner/orders")
  [[ $answer == '{"error":"Service unavailable"} 503 application/json' ]] || fail "without an ingress the proxy answers $answer"
  docker logs "$proxy" >"$LOGS/proxy-manners.log" 2>&1
  grep -q '"route":"qr"' "$LOGS/proxy-manners.log" && grep -q '"route":"callbacks"' "$LOGS/proxy-manners.log" || fail "the proxy doesn't log requests"
  ! grep -E 'IN-A-PATH|/qr|/callbacks' "$LOGS/proxy-manners.log" || fail "the proxy logs paths"
  docker kill "$proxy" >/dev/null
  until_true 'the network to be free' docker network rm "$network" >/dev/null 2>&1
  say "proxy: sends a POST once, makes no answer up, logs no path"
}

# `esimctl_wrappers BIN_DIR`: a folder for BIN_DIR in which esimctl is the one in the container.
esimctl_wrappers() {
  WRAPPERS=$WORK/bin TOOLS=$1
  mkdir -p "$WRAPPERS"
  cat >"$WRAPPERS/esimctl" <<WRAPPER
#!/usr/bin/env bash
# A file among the arguments is one of this machine, and of whoever runs the tests.
set -euo pipefail
arguments=()
for argument; do
  if [[ \$argument == /* && -f \$argument ]]; then
    exec <"\$argument"
    argument=-
  fi
  arguments+=("\$argument")
done
exec docker run --rm --interactive --network "${COMPOSE_PROJECT_NAME}_default" --read-only \
  --env DATABASE_URL=postgres://esim@postgres:5432/esim --env PGPASSFILE=/var/lib/esim/pgpass \
  --env MASTER_KEY_FILE=/var/lib/esim/master.key --volume "${COMPOSE_PROJECT_NAME}_secrets:/var/lib/esim:ro" \
  "$IMAGES/esimctl:$VERSION" "\${arguments[@]}"
WRAPPER
  chmod +x "$WRAPPERS/esimctl"
}

# As the head of docker-compose.yml says.
import_catalogue() {
  compose run --rm -T sandbox catalogue | compose run --rm -T esimctl option import - >>"$LOGS/compose.log"
}

# `environment`: what the tests and the load generator are told.
environment() {
  [[ -n ${PASSWORD-} ]] || PASSWORD=$(docker exec "$(container postgres)" cat /run/esim/password)
  export BASE_URL=http://127.0.0.1:$PORT BIN_DIR=$WRAPPERS TEST_WEBHOOK_ADDRESS=$GATEWAY
  DATABASE_URL=postgres://esim:$PASSWORD@$(address "$(container postgres)"):5432/esim
  SANDBOX=http://$(address "$(container sandbox)"):8090
}

# `specification`: the tests of tests/e2e that need nothing but a running system.
specification() {
  environment
  env TEST_BASE_URL="$BASE_URL" TEST_DATABASE_URL="$DATABASE_URL" TEST_SANDBOX_URL="$SANDBOX" \
    cargo test --workspace --locked --quiet --test e2e -- --exact --test-threads 1 \
    spec::the_specification_holds_rule_by_rule \
    webhook::each_unit_has_one_webhook_with_the_nine_fields \
    webhook::without_a_url_nothing_is_delivered_until_there_is_one \
    webhook::a_webhook_that_is_not_acknowledged_comes_again \
    webhook::the_largest_order_arrives_completely \
    shell::a_plain_shell_client_orders
}

# `load_begins`: orders come in until load_ends.
load_begins() {
  environment
  "$TOOLS/load" --base-url "$BASE_URL" --database-url "$DATABASE_URL" --run-dir "$WORK" --rate "${RATE:-20}" --seconds 600 \
    --connections 16 --partners 2 --patience 60s --json >"$LOGS/load-$PHASE.json" 2>"$LOGS/load-$PHASE.log" &
  LOAD=$!
  until_true 'the first order of the load' sold_more "$(sold)"
}

sold() { curl --fail --silent --max-time 2 "$SANDBOX/ledger" | sed -E 's/.*"purchases": ?([0-9]+).*/\1/' || echo 0; }
sold_more() { kill -0 "$LOAD" 2>/dev/null || fail "the load ended; see $LOGS/load-$PHASE.log"; [[ $(sold) -gt $1 ]]; }

# `load_ends`: and nothing is lost. Accepted topups without webhook make the generator fail.
load_ends() {
  local status=0 report=$LOGS/load-$PHASE.json
  kill -INT "$LOAD"
  wait "$LOAD" || status=$?
  LOAD=''
  [[ $status == 0 ]] || { head -n 60 "$report" >&2; tail -n 5 "$LOGS/load-$PHASE.log" >&2; fail "the load ended with exit status $status"; }
  python3 - "$report" <(curl --fail --silent --max-time 30 "$SANDBOX/ledger") <<'CHECK'
import json, sys
report, ledger = (json.load(open(name)) for name in sys.argv[1:])
twice = [order["order_id"] for order in ledger["orders"] if order["purchased_times"] != 1]
print("%d orders accepted, %d topups, %d webhooks missing, %d errors; the sandbox sold %d orders, %d of them more than once" % (
    report["accepted_orders"], report["accepted_topups"], report["missing_webhooks"],
    sum(kind["count"] for kind in report["errors"].values()), len(ledger["orders"]), len(twice)))
assert report["missing_webhooks"] == 0, "webhooks are missing"
assert not twice, twice
CHECK
}

# The counter that moves when a stage works.
declare -A WORKED=([ingress]=esim_orders_total [provisioner]=esim_provider_calls_total [notifier]=esim_delivery_attempts_total)

# `works SERVICE CONTAINER`: it has done something since it started.
works() {
  local sum
  sum=$(curl --fail --silent --max-time 2 "http://$(address "$2"):9090/metrics" | awk -v name="${WORKED[$1]}" '$0 ~ "^" name "[{ ]" { sum += $NF } END { print sum + 0 }') || return 1
  [[ ${sum%.*} -gt ${3:-0} ]]
}

worked() { curl --fail --silent --max-time 2 "http://$(address "$2"):9090/metrics" | awk -v name="${WORKED[$1]}" '$0 ~ "^" name "[{ ]" { sum += $NF } END { printf "%d", sum }'; }

count_is() { [[ $(containers "$1" | wc -l) == "$2" ]]; }

scaling() {
  local service id replicas
  load_begins
  docker compose up --wait --no-build --pull never --no-recreate --scale ingress=2 --scale provisioner=2 --scale notifier=3 2>>"$LOGS/compose.log" ||
    fail "docker compose up --scale failed"
  for service in ingress provisioner notifier; do
    replicas=2
    [[ $service != notifier ]] || replicas=3
    count_is "$service" "$replicas" || fail "$service was not scaled"
    for id in $(containers "$service"); do
      until_true "work of ${id:0:12}, a replica of $service" works "$service" "$id"
    done
    say "$service: each of $(containers "$service" | wc -l) replicas takes work"
  done
  load_ends
}

# Prometheus, as docker-compose.yml configures it, scrapes each replica and knows each alert.
observing() {
  PROMETHEUS=http://$(address "$(container prometheus)"):9090
  until_true 'Prometheus to scrape every replica' every_replica_scraped
  curl --fail --silent --max-time 5 "$PROMETHEUS/api/v1/rules?type=alert" |
    python3 -c 'import json, sys
rules = [rule for group in json.load(sys.stdin)["data"]["groups"] for rule in group["rules"]]
assert len(rules) == int(sys.argv[1]) and all(rule["health"] != "err" for rule in rules), rules
print("Prometheus scrapes every replica and evaluates", len(rules), "alerts")' \
      "$(grep -c -- '- alert:' "$ROOT/deploy/observability/prometheus/alerts.yml")" || fail "Prometheus hasn't all alerts"
}

every_replica_scraped() {
  curl --fail --silent --max-time 5 "$PROMETHEUS/api/v1/targets?state=active" |
    python3 -c 'import collections, json, sys
targets = json.load(sys.stdin)["data"]["activeTargets"]
up = collections.Counter(target["labels"]["job"] for target in targets if target["health"] == "up")
sys.exit(up != {"ingress": 2, "provisioner": 2, "notifier": 3, "sandbox": 1, "prometheus": 1})'
}

# `crash CONTAINER`: as if its process had died, so that its restart policy applies.
crash() {
  local pid
  pid=$(docker inspect --format '{{.State.Pid}}' "$1")
  if [[ $(id -u) == 0 && -d /proc/$pid ]]; then
    kill -KILL "$pid"
  else
    docker kill "$1" >/dev/null && docker start "$1" >/dev/null
  fi
}

is_back() { [[ $(docker inspect --format '{{.State.StartedAt}}' "$1") != "$2" ]] && is_healthy "$1"; }

killing() {
  local service id started
  load_begins
  for service in ingress provisioner notifier sandbox nats postgres proxy; do
    id=$(container "$service")
    started=$(docker inspect --format '{{.State.StartedAt}}' "$id")
    crash "$id"
    until_true "$service to come back after it was killed" is_back "$id" "$started"
    environment # addresses may have changed
    until_true "orders after $service was killed" sold_more "$(sold)"
    say "$service: killed, back and healthy"
  done
  load_ends
}

cutting() {
  local id network=${COMPOSE_PROJECT_NAME}_default before
  load_begins
  id=$(container provisioner)
  docker network disconnect "$network" "$id"
  until_true 'the provisioner without a network to say that it is not ready' not_ready "$id"
  until_true 'the other provisioner to work on' sold_more "$(sold)"
  docker network connect --alias provisioner "$network" "$id"
  until_true 'the provisioner to be reachable again' worked provisioner "$id" >/dev/null
  before=$(worked provisioner "$id")
  until_true 'the provisioner to take work after it joined again' works provisioner "$id" "$before"
  say "provisioner: cut off, joined again, at work"
  load_ends
}

not_ready() { ! docker exec "$1" provisioner healthcheck >/dev/null 2>&1; }

clustering() {
  local server
  docker compose --profile observability down --volumes --timeout 20 2>>"$LOGS/compose.log"
  export COMPOSE_FILE=$ROOT/docker-compose.yml:$ROOT/deploy/compose.cluster.yml
  PASSWORD=''
  bring_up
  import_catalogue
  load_begins
  until_true 'three copies of the stream TOPUP_JOBS' three_copies
  for server in nats nats-1 nats-2; do
    docker compose stop --timeout 20 "$server" 2>>"$LOGS/compose.log"
    environment
    until_true "orders without $server" sold_more "$(sold)"
    docker compose start "$server" 2>>"$LOGS/compose.log"
    until_true "$server to be healthy again" is_healthy "$(container "$server")"
    say "$server: stopped, orders went on; started again"
  done
  load_ends
}

three_copies() {
  curl --fail --silent --max-time 2 "http://$(address "$(container nats)"):8222/jsz?streams=true&config=true" |
    python3 -c 'import json, sys
streams = [stream for account in json.load(sys.stdin)["account_details"] for stream in account.get("stream_detail", [])]
sys.exit(not any(stream["name"] == "TOPUP_JOBS" and stream["config"]["num_replicas"] == 3 and len(stream["cluster"].get("replicas", [])) == 2 for stream in streams))' 2>/dev/null
}

show_trouble() {
  docker ps --all --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --format 'table {{.Names}}\t{{.Status}}' >&2
  docker compose logs --no-color --timestamps >"$LOGS/containers.log" 2>&1
  say "the containers' logs are in $LOGS/containers.log"
}

take_down() {
  [[ -z ${LOAD-} ]] || { kill -KILL "$LOAD" && wait "$LOAD"; } 2>/dev/null
  [[ -n ${COMPOSE_PROJECT_NAME-} ]] || return 0
  docker compose --profile observability --profile tools down --volumes --remove-orphans --timeout 5 2>>"$LOGS/compose.log"
  # Of the proxy's own check, if that was interrupted.
  docker ps --quiet --filter "label=esim-test=$COMPOSE_PROJECT_NAME" | while read -r id; do docker kill "$id"; done >/dev/null 2>&1
  docker network ls --quiet --filter "label=esim-test=$COMPOSE_PROJECT_NAME" | while read -r id; do docker network rm "$id"; done >/dev/null 2>&1
  local program
  for program in "${PROGRAMS[@]}"; do docker image rm --force "$IMAGES/$program:$VERSION" >/dev/null 2>&1; done
}

say_how_to_look() {
  say "still running. To look at it:
  export COMPOSE_PROJECT_NAME=$COMPOSE_PROJECT_NAME COMPOSE_FILE=$COMPOSE_FILE ${DOCKER_HOST:+DOCKER_HOST=$DOCKER_HOST}
  docker compose ps
and to end it:
  docker compose down --volumes${ENGINE_PID:+; kill $ENGINE_PID}; rm -r $WORK"
}
