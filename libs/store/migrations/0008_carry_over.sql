-- no-transaction
-- serves: 7
-- Carries over what programs of schema 5 and 6 stored before 0007, in bounded batches that commit one by one.
DO $$
DECLARE
    last text := '';
    batch text[];
BEGIN
    SET LOCAL enable_seqscan = off;
    INSERT INTO placement_due (placement_id, provider, lane, partner_id, buys, at)
    SELECT p.placement_id, p.provider, '', o.partner_id, p.state = 'accepted', p.redrive_at
    FROM placements p JOIN orders o ON o.order_id = p.order_id
    WHERE p.redrive_at IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO placement_parked (placement_id, provider, at)
    SELECT placement_id, provider, created_at FROM placements WHERE state = 'parked'
    ON CONFLICT DO NOTHING;
    UPDATE placements SET disputed = true
    WHERE state = 'parked' AND placed_at IS NOT NULL AND redrive_at IS NULL;
    INSERT INTO delivery_due (topup_id, partner_id, at)
    SELECT topup_id, partner_id, redrive_at FROM deliveries WHERE redrive_at IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO delivery_held (topup_id, partner_id, state)
    SELECT topup_id, partner_id, state FROM deliveries WHERE state IN ('exhausted', 'no_endpoint')
    ON CONFLICT DO NOTHING;
    COMMIT;
    LOOP
        SELECT array_agg(topup_id ORDER BY topup_id) INTO batch
        FROM (SELECT topup_id FROM topups WHERE topup_id > last ORDER BY topup_id LIMIT 5000) page;
        EXIT WHEN batch IS NULL;
        INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at)
        SELECT topup_id, provider, provider_unit_id, iccid, profile, ready_at
        FROM topups WHERE topup_id = ANY(batch) AND provider_unit_id IS NOT NULL
        ON CONFLICT DO NOTHING;
        last := batch[array_upper(batch, 1)];
        COMMIT;
    END LOOP;
END
$$
