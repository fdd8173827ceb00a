-- serves: 24
-- contract: a view under the old name serves the programs of the older schemas, statement by statement
-- The profiles that retention looks at again are rows of `work` with the kind `erase`
-- (docs/decisions/0035-fewer-kinds-one-truth.md). Their `lane` is the topup, and their id is derived from kind and topup, as
-- those of events are. `at` is the time of the next look.

-- As in 0004: each stage sees and changes its own work only. The notifier erases, too.
ALTER POLICY work_of_stage ON work
    USING (CASE current_user WHEN 'esim_provisioner' THEN kind NOT IN ('deliver', 'erase')
                             WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase')
                             WHEN 'esim_ingress' THEN kind = 'deliver' ELSE true END)
    WITH CHECK (CASE current_user WHEN 'esim_provisioner' THEN kind <> 'erase'
                                  WHEN 'esim_notifier' THEN kind IN ('deliver', 'erase')
                                  WHEN 'esim_ingress' THEN kind = 'deliver' ELSE true END);

-- The lock of the renaming keeps programs from changing a row while it is copied. A row of a topup that is gone is left out,
-- because nothing is left to erase.
ALTER TABLE retention_due RENAME TO old_retention_due;
INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT md5('erase ' || due.topup_id)::uuid, 'erase', '', due.topup_id, p.partner_id, due.at
    FROM old_retention_due due
    JOIN topups t ON t.topup_id = due.topup_id
    JOIN placements p ON p.placement_id = t.placement_id
    ON CONFLICT DO NOTHING;
DROP TABLE old_retention_due;

-- For programs of older schemas. The view ends when no such program can run beside this version any more.
CREATE VIEW retention_due WITH (security_invoker = true) AS
    SELECT lane AS topup_id, at FROM work WHERE kind = 'erase' AND provider = '';
CREATE FUNCTION insert_retention_due() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO work (id, kind, provider, lane, partner_id, at)
    SELECT md5('erase ' || NEW.topup_id)::uuid, 'erase', '', NEW.topup_id, p.partner_id, NEW.at
    FROM topups t JOIN placements p ON p.placement_id = t.placement_id
    WHERE t.topup_id = NEW.topup_id
    ON CONFLICT DO NOTHING;
    RETURN NEW;
END
$$;
CREATE TRIGGER insert_retention_due INSTEAD OF INSERT ON retention_due
    FOR EACH ROW EXECUTE FUNCTION insert_retention_due();
