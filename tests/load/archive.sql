-- Delivered orders of one unit, spread over 400 days, with the ids that their time gives them. Their profiles are erased,
-- as after the term of retention. Parameters: first, last, all.
SET synchronous_commit = off;
CREATE TEMP TABLE filled AS
SELECT n, at, ('00000000-0000-7000-8000-' || lpad((n % 1000 + 1)::text, 12, '0'))::uuid AS partner_id,
       -- A UUID of version 7: 48 bits of milliseconds, and the number in the end.
       (substr(ms, 1, 8) || '-' || substr(ms, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
       to_char(at AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISS') || lpad(n::text, 12, '0') AS topup_id
FROM (SELECT n, at, lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS ms
      FROM (SELECT n, now() - interval '400 days' * (1 - n / (:all + 1)::float8) AS at
            FROM generate_series(:first + 1, :last) n) numbers) times;
INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, traceparent, created_at)
SELECT id, partner_id, 'filled-' || n, at, '00-' || md5(n::text) || '-00f067aa0ba902b7-01', at FROM filled;
INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, placed_at, created_at)
SELECT id, id, partner_id, 'sandbox', 'ready', 'placed', 1, at, at, at FROM filled;
INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
SELECT topup_id, id, 0, partner_id, 'ready' FROM filled;
INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, ready_at, delivery_id, erased_at)
SELECT topup_id, 'sandbox', id, '89' || lpad(n::text, 17, '0'), at, id, at FROM filled;
INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, duration_ms,
                        status, delivered_at, created_at)
SELECT id, partner_id, 'topup.ready', topup_id, id, 'delivered', 1, at, 5, 200, at, at FROM filled;
