-- serves: 4
-- Unfinished work: what a stage must do, and what waits for a person.

-- A row says that a placement or a delivery needs its stage at `at`: now, or later for a retry, a poll or a look-up.
-- The claim of a row moves `at` to the end of its lease, so that other processes leave the row alone for that long; a
-- lease saves work and guarantees nothing. A placement or a delivery that is finished within its first lease usually has
-- no row here, so the fast path writes nothing.
CREATE TABLE work (
    -- The placement or the delivery.
    id uuid PRIMARY KEY,
    -- `buy`: a purchase that was never tried. `buy_again`: a further attempt, which comes before first ones. `find`:
    -- look up an attempt whose outcome is unknown. `collect`: ask for missing profiles. `deliver`: send a webhook.
    kind text NOT NULL,
    -- Empty for a delivery.
    provider text NOT NULL,
    -- What fails together: the placement's lane. Empty for a delivery, whose partner says it.
    lane text NOT NULL,
    partner_id uuid NOT NULL,
    at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
-- A look at due work goes from lane to lane and partner to partner, so that no backlog hides another one.
CREATE INDEX work_lane ON work (kind, provider, lane, partner_id, at);
-- The number of due rows, and how long the oldest has been due.
CREATE INDEX work_at ON work (kind, provider, at);

-- Placements and deliveries that nothing is done for until somebody acts: parked placements, deliveries whose retries
-- ended (`exhausted`), and deliveries of a partner without a webhook URL (`no_endpoint`).
CREATE TABLE held (
    id uuid PRIMARY KEY,
    -- `parked`, `exhausted` or `no_endpoint`.
    state text NOT NULL,
    -- Empty for a delivery.
    provider text NOT NULL,
    partner_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX held_state ON held (state, provider, at);
CREATE INDEX held_partner ON held (partner_id, state, at);

-- How far each stage has looked for rows whose first lease ended without an outcome.
CREATE TABLE sweeps (
    stage text PRIMARY KEY,
    -- Everything created until then is finished or has a row in `work`.
    up_to timestamptz NOT NULL,
    -- `up_to` may move to `fence_at` once no transaction older than `fence_xid` runs: a slow commit is not missed.
    fence_at timestamptz,
    fence_xid xid8
);
INSERT INTO sweeps (stage, up_to) VALUES ('placements', now()), ('deliveries', now());

-- Each stage sees and changes its own work only, although the table is shared: whoever has a stage's credentials cannot
-- stop the other stage by deleting its work. The provisioner may insert a delivery's row, because it creates deliveries.
-- Retention, which runs in the notifier, keeps the profiles of parked placements, so the notifier may read those. The
-- owner and operators see everything.
ALTER TABLE work ENABLE ROW LEVEL SECURITY;
CREATE POLICY work_of_stage ON work
    USING (CASE current_user WHEN 'esim_provisioner' THEN kind <> 'deliver' WHEN 'esim_notifier' THEN kind = 'deliver'
                             WHEN 'esim_ingress' THEN kind = 'deliver' ELSE true END)
    WITH CHECK (CASE current_user WHEN 'esim_notifier' THEN kind = 'deliver' WHEN 'esim_ingress' THEN kind = 'deliver'
                                  ELSE true END);
ALTER TABLE held ENABLE ROW LEVEL SECURITY;
CREATE POLICY held_readable ON held FOR SELECT USING (current_user <> 'esim_provisioner' OR state = 'parked');
CREATE POLICY held_of_stage ON held
    USING (CASE current_user WHEN 'esim_provisioner' THEN state = 'parked' WHEN 'esim_notifier' THEN state <> 'parked'
                             WHEN 'esim_ingress' THEN state <> 'parked' ELSE true END);

-- Whatever fails a topup creates the event about it in the same transaction. The event is due when the order can no
-- longer be answered with 422. The function has the owner's rights, because the provisioner reads nothing of partners.
CREATE FUNCTION topup_failed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    WITH subject AS (
        SELECT o.order_id, o.partner_id, o.answer_by
        FROM placements p
        JOIN orders o ON o.order_id = p.order_id
        JOIN partners a ON a.partner_id = o.partner_id
        WHERE p.placement_id = NEW.placement_id AND o.refused_at IS NULL AND 'topup.failed' = ANY (a.webhook_events)
    ), created AS (
        INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id)
        SELECT md5('topup.failed ' || NEW.topup_id)::uuid, partner_id, 'topup.failed', NEW.topup_id, order_id
        FROM subject
        ON CONFLICT DO NOTHING
        RETURNING delivery_id
    )
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT delivery_id, 'deliver', '', '', partner_id, greatest(answer_by, now()) FROM created, subject;
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_failed AFTER UPDATE OF state ON topups
    FOR EACH ROW WHEN (NEW.state = 'failed' AND OLD.state <> 'failed') EXECUTE FUNCTION topup_failed();
