-- 60,000 finished orders of 500 partners over 200 days, one in fifty with failed attempts, and the few rows that are
-- under way. Enough that a sequential scan costs more than an index everywhere.
INSERT INTO partners (partner_id, name, environment, access_key)
SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'p' || n, 'live', 'ak_' || n
FROM generate_series(1, 500) n;
UPDATE partner_endpoints SET url = 'http://127.0.0.1/', secrets = ARRAY['x'::bytea], secret_ends = ARRAY[NULL::timestamptz];
INSERT INTO providers (name) VALUES ('sandbox'), ('usimsa');

CREATE TEMP TABLE filled AS
SELECT n, lpad(to_hex(n), 12, '0') AS hex, now() - make_interval(secs => (60000 - n) * 288) AS at,
       ('00000000-0000-7000-8000-' || lpad((n % 500 + 1)::text, 12, '0'))::uuid AS partner_id,
       ('01980000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id
FROM generate_series(1, 60000) n;
INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at, refused_at)
SELECT id, partner_id, 'o-' || n, at, at, CASE WHEN n % 100 = 0 THEN at END FROM filled;
INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, placed_at, created_at)
SELECT id, id, partner_id, CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END, 'lane ' || n % 20, 'placed', 1, at, at, at
FROM filled;
INSERT INTO provider_references (reference, placement_id) SELECT 'reference-' || n, id FROM filled;
INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
SELECT to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), id, 0, partner_id, 'option' FROM filled;
INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest)
SELECT to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END,
       'unit-' || n, '89' || lpad(n::text, 17, '0'), decode(repeat(md5(n::text), 12), 'hex'), at, id, decode(md5(n::text), 'hex')
FROM filled;
INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status,
                        delivered_at, created_at)
SELECT id, partner_id, 'topup.ready', to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), id, 'delivered', 1, at,
       200, at, at
FROM filled;
INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status,
                        delivered_at, created_at)
SELECT md5(n::text)::uuid, partner_id, 'topup.failed', to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), id,
       'delivered', 1, at, 200, at, at
FROM filled;
INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class)
SELECT id, 0, at, 5, 500, 'status_5xx' FROM filled;
INSERT INTO work (id, kind, provider, lane, partner_id, at)
SELECT id, (ARRAY['buy', 'buy_again', 'look_up', 'collect'])[n % 4 + 1], CASE n / 4 % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END,
       'lane ' || n % 20, partner_id, now() + make_interval(secs => n - 50000)
FROM filled WHERE n > 40000;
INSERT INTO work (id, kind, provider, lane, partner_id, at)
SELECT md5(n::text)::uuid, 'deliver', '', '', partner_id, now() + make_interval(secs => n - 50000)
FROM filled WHERE n > 40000;
INSERT INTO held (id, state, provider, partner_id, at)
SELECT id, 'parked', CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END, partner_id, at FROM filled WHERE n > 40000;
INSERT INTO held (id, state, provider, partner_id, at)
SELECT md5(n::text)::uuid, CASE n % 2 WHEN 0 THEN 'exhausted' ELSE 'no_endpoint' END, '', partner_id, at FROM filled;
INSERT INTO work (id, kind, provider, lane, partner_id, at)
SELECT md5('erase ' || topup_id)::uuid, 'erase', '', topup_id, partner_id, at
FROM (SELECT to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0') AS topup_id, partner_id, at FROM filled WHERE n <= 20000) due;
INSERT INTO operator_actions (action_id, at, operator, command, target, affected, reason)
SELECT id, at, 'o', 'recover', 'order ' || id, 1, 'r' FROM filled;
INSERT INTO archived_orders (order_id, partner_id, external_order_id, refused, archive, archived_at)
SELECT md5(n::text)::uuid, partner_id, 'a-' || n, n % 100 = 0, n / 10000, at FROM filled;
UPDATE partner_endpoints SET failures = 1 WHERE partner_id IN (SELECT partner_id FROM filled);
INSERT INTO resends (resend_id, partner_id, since, until, phase, created_at, ended_at)
SELECT id, partner_id, at, at, 'sending', at, CASE WHEN n < 59990 THEN at END FROM filled;
INSERT INTO refused_requests (request_id, partner_id, kind, at, status, reason, errors, method, path, external_order_id,
                              unrecorded)
SELECT id, partner_id, (ARRAY['order', 'other', 'unsigned'])[n % 3 + 1], at, 422, 'r', 'r', 'POST', '/orders',
       CASE n % 3 WHEN 0 THEN 'r-' || n END, 0
FROM filled;
INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, url, secrets, secret_ends)
SELECT md5('endpoint ' || n)::uuid, ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 1, 'https://127.0.0.1/',
       '{x}', '{NULL}'
FROM generate_series(1, 50) n;
-- Only their number matters here.
ALTER TABLE further_deliveries DISABLE TRIGGER USER;
INSERT INTO further_deliveries (topup_id, delivery_id)
SELECT to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), id FROM filled WHERE n > 30000;
INSERT INTO esim_requests (topup_id, partner_id, provider, usage_asked_at, read_at, give_back, give_back_asked_at, ended_at)
SELECT to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), partner_id,
       CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END, CASE WHEN n > 59000 THEN at END, at, CASE WHEN n % 100 = 0 THEN 'returned' WHEN n % 1000 = 1 THEN 'parked' END, at, at
FROM filled;
INSERT INTO work (id, kind, provider, lane, partner_id, at)
SELECT md5('usage ' || n)::uuid, 'usage', CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END,
       to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), partner_id, now() + make_interval(secs => n - 59500)
FROM filled WHERE n > 59000;
INSERT INTO history (order_id, placement_id, kind, at) SELECT id, id, 'unknown', at FROM filled WHERE n % 20 = 0;
INSERT INTO history (provider, kind, at) SELECT 'sandbox', 'breaker_opened', at FROM filled WHERE n % 50 = 0;
INSERT INTO topup_changes (partner_id, at, topup_id, change)
SELECT partner_id, at, to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), 'failed' FROM filled;
INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, state, asked_at,
                        attempt, attempted_at, ended_at)
SELECT id, partner_id, to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END,
       'x-' || n, partner_id, 'option', CASE WHEN n % 1000 = 1 THEN 'parked' WHEN n > 59900 THEN 'asked' ELSE 'added' END, at, 1, at, at
FROM filled WHERE n % 10 = 1;
INSERT INTO work (id, kind, provider, lane, partner_id, at)
SELECT md5('extend ' || n)::uuid, 'extend', CASE n % 2 WHEN 0 THEN 'sandbox' ELSE 'usimsa' END,
       to_char(at, 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0'), partner_id, now() + make_interval(secs => n - 59500)
FROM filled WHERE n > 59000;
INSERT INTO accounts (partner_id, currency, last_entry) SELECT partner_id, 'EUR', 1000 FROM partners LIMIT 60;
INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, made_by, at)
SELECT a.partner_id, 'EUR', n, 'charge', -1, -n, 1, a.partner_id || ' ' || n, 'system', now() - make_interval(hours => 5 * (1000 - n))
FROM accounts a, generate_series(1, 1000) n;
