"""Rows for the walk of tests/console and for its measurement: orders, purchases, give-backs and extensions on hold, refused
requests, and webhooks that were given up.
"""

import os
import subprocess
import urllib.parse


def ordered_id(n, kind):
    """SQL of a UUIDv7 of the time n seconds ago, as the programs make them: lists are in the order of ids."""
    ago = f"extract(epoch FROM now() - {n} * interval '1 second') * 1000"
    return f"(lpad(to_hex(({ago})::bigint), 12, '0') || '7000800{kind}' || lpad(to_hex({n}), 12, '0'))::uuid"


# Payments of the demo's partner, more of them than a page has.
PAYMENTS = [
    """INSERT INTO accounts (partner_id, currency)
       SELECT partner_id, 'EUR' FROM partners WHERE name NOT LIKE 'Measured %' ORDER BY created_at DESC LIMIT 1
       ON CONFLICT DO NOTHING""",
    """SELECT count(book_entry(partner_id, currency, 'deposit', 1000, 'rows-' || n, 'rows', 'rows'))
       FROM accounts, generate_series(1, 30) n WHERE currency = 'EUR'""",
]


def store_orders(number, first=1, on_hold=1, given_back=0):
    """Copies of the demo's order, with ids and times of their own, written by one statement. The oldest ones are on hold, and the
    newest ones are given back without an answer; as many others are extended without one."""
    last = int(first) + int(number) - 1
    bought = last - int(on_hold)
    sql = f"""
        WITH partner AS (SELECT partner_id FROM partners WHERE name NOT LIKE 'Measured %' ORDER BY created_at DESC LIMIT 1), new AS MATERIALIZED (
            SELECT {ordered_id('n', 0)} AS order_id, {ordered_id('n', 1)} AS placement_id, {ordered_id('n', 2)} AS delivery_id, n > {bought} AS on_hold,
                   '2024' || lpad(n::text, 22, '0') AS topup_id, n, now() - n * interval '1 second' AS at, partner_id
            FROM generate_series({int(first)}, {last}) n, partner
        ), o AS (INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at)
                 SELECT order_id, partner_id, 'measured-' || n, at, at FROM new
        ), p AS (INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, placed_at, reason, created_at)
                 SELECT placement_id, order_id, partner_id, 'sandbox', 'ready', CASE WHEN on_hold THEN 'parked' ELSE 'placed' END, 1, at,
                        CASE WHEN NOT on_hold THEN at END, CASE WHEN on_hold THEN 'outcome_unknown: no answer' END, at FROM new
        ), t AS (INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
                 SELECT topup_id, placement_id, 0, placement_id, 'ready' FROM new
        ), h AS (INSERT INTO held (id, state, provider, partner_id)
                 SELECT placement_id, 'parked', 'sandbox', partner_id FROM new WHERE on_hold
        ), e AS (INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, ready_at, delivery_id)
                 SELECT topup_id, 'sandbox', 'm' || n, '89' || lpad(n::text, 17, '0'), at, delivery_id FROM new WHERE NOT on_hold
        ), r AS (INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, attempt, reason, message, ended_at)
                 SELECT topup_id, partner_id, 'sandbox', 'parked', now(), 1, 'unknown', 'timeout', now() FROM new
                 WHERE n < {int(first) + int(given_back)}
        ), x AS (INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, state, attempt,
                                         attempted_at, reason, message, ended_at)
                 SELECT {ordered_id('n', 4)}, partner_id, topup_id, 'sandbox', 'more-' || n, placement_id, 'ready', 'parked', 1, now(), 'unknown', 'timeout',
                        now() FROM new
                 WHERE n >= {int(first) + int(given_back)} AND n < {int(first) + 2 * int(given_back)})
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, delivered_at, status, duration_ms, created_at)
        SELECT delivery_id, partner_id, 'topup.ready', topup_id, order_id, 'delivered', 1, at, at, 200, 12, at FROM new WHERE NOT on_hold"""
    # Their ids are older than any that ingress makes, so what it refuses stands first.
    refused = f"""
        INSERT INTO refused_requests (request_id, partner_id, kind, at, status, reason, errors, method, path, external_order_id, unrecorded)
        SELECT ('00' || substr(md5(kind || n || '-{int(first)}'), 3))::uuid, partner_id, kind, now() - n * interval '1 minute', 422, 'qty_invalid', 'qty_invalid; item=0', 'POST',
               '/api/v1/api_partner/orders', 'refused-' || n, 0
        FROM (SELECT partner_id FROM partners WHERE name NOT LIKE 'Measured %' ORDER BY created_at DESC LIMIT 1) partner, generate_series(1, 1000) n,
             unnest(ARRAY['order', 'other', 'unsigned']) kind"""
    psql(sql, refused, *PAYMENTS, "ANALYZE")


def store_partners(number, exhausted, first=1):
    """Further partners without keys, and given-up webhooks of its eSIMs, shared among a hundred
    of them at most."""
    psql(f"""
        WITH model AS (SELECT * FROM partners WHERE name NOT LIKE 'Measured %' ORDER BY created_at DESC LIMIT 1)
        INSERT INTO partners (partner_id, name, environment, access_key, version, created_at)
        SELECT gen_random_uuid(), 'Measured ' || n, environment, md5(n::text), 0, created_at - n * interval '1 second'
        FROM model, generate_series({int(first)}, {int(first) + int(number) - 1}) n""", """
        UPDATE partner_endpoints e SET url = 'https://' || e.endpoint_id || '.measured.example/'
        FROM partners p WHERE p.partner_id = e.endpoint_id AND p.name LIKE 'Measured %'""", f"""
        WITH few AS (SELECT partner_id, row_number() OVER () - 1 AS nth FROM partners WHERE name LIKE 'Measured %' LIMIT 100),
        new AS MATERIALIZED (
            SELECT {ordered_id('n', 3)} AS id, partner_id, topup_id, order_id, n FROM (
                SELECT topup_id, order_id, row_number() OVER () AS n FROM deliveries WHERE kind = 'topup.ready' LIMIT {int(exhausted)}
            ) d JOIN few ON few.nth = d.n % (SELECT count(*) FROM few)
        ), held AS (INSERT INTO held (id, state, provider, partner_id, at) SELECT id, 'exhausted', '', partner_id, now() - n * interval '1 second' FROM new)
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status, duration_ms, created_at)
        SELECT id, partner_id, 'topup.ready', topup_id, order_id, 'exhausted', 24, now(), 500, 12, now() - n * interval '1 second'
        FROM new""", "ANALYZE")


def psql(*statements):
    """Runs statements as the owner. The password goes through the environment, because all users of the machine can see
    arguments."""
    url = urllib.parse.urlsplit(os.environ["DATABASE_URL"])
    login = {"PGHOST": url.hostname, "PGPORT": str(url.port), "PGUSER": url.username, "PGPASSWORD": url.password,
             "PGDATABASE": url.path.lstrip("/")}
    # ANALYZE warns of each table of the server that is not the owner's.
    command = [os.environ["PG_BIN"] + "/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", "SET client_min_messages = error"]
    for one in statements:
        command += ["-c", one]
    return subprocess.run(command, check=True, env={**os.environ, **login}, stdout=subprocess.PIPE, text=True).stdout.strip()
