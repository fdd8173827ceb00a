-- serves: 24
-- contract: views under the old names serve the programs of the older schemas, statement by statement
-- `operations` and `operation_parts` become views of `resends`, of which 0043 and 0044 have made what was there
-- (docs/decisions/0035-fewer-kinds-one-truth.md). An `esimctl` or a console of schema 24 lists, begins and cancels its
-- operations through them, and so begins the same resends as one of this schema.

-- Each table is renamed before its rows are copied, because the lock that this takes keeps programs from changing a row in
-- between.
ALTER TABLE operations RENAME TO old_operations;
ALTER TABLE operation_parts RENAME TO old_operation_parts;

CREATE VIEW operations AS
SELECT resend_id AS operation_id, 'delivery replay' AS kind,
       jsonb_build_object('state', state, 'since', since, 'until', until) AS filter,
       asked_by AS operator, via, reason, skipped, created_at, cancelled_at
FROM resends WHERE partner_id IS NULL;
CREATE VIEW operation_parts AS
SELECT batch_id AS operation_id, resend_id AS redelivery_id FROM resends WHERE batch_id IS NOT NULL;

-- A resend of several partners is stored as ended, because its parts are what is worked off.
CREATE FUNCTION begin_operation() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    began constant timestamptz := coalesce(NEW.created_at, now());
BEGIN
    INSERT INTO resends
        (resend_id, state, since, until, phase, created_at, ended_at, cancelled_at, asked_by, via, reason, skipped)
    VALUES (NEW.operation_id, NEW.filter->>'state', coalesce((NEW.filter->>'since')::timestamptz, began),
            coalesce((NEW.filter->>'until')::timestamptz, began), 'sending', began, began, NEW.cancelled_at, NEW.operator,
            NEW.via, NEW.reason, NEW.skipped)
    ON CONFLICT (resend_id) DO UPDATE SET cancelled_at = excluded.cancelled_at;
    RETURN NEW;
END
$$;
CREATE TRIGGER begin_operation INSTEAD OF INSERT ON operations FOR EACH ROW EXECUTE FUNCTION begin_operation();

-- Its parts are redeliveries that the same transaction has stored.
CREATE FUNCTION join_operation() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE resends r SET batch_id = o.resend_id, asked_by = o.asked_by, via = o.via, reason = o.reason
    FROM resends o
    WHERE o.resend_id = NEW.operation_id AND r.resend_id = NEW.redelivery_id AND r.batch_id IS NULL;
    RETURN NEW;
END
$$;
CREATE TRIGGER join_operation INSTEAD OF INSERT ON operation_parts FOR EACH ROW EXECUTE FUNCTION join_operation();

-- What was begun since 0043 and 0044, and cancelled since then.
INSERT INTO operations (operation_id, kind, filter, operator, via, reason, skipped, created_at, cancelled_at)
SELECT operation_id, kind, filter, operator, via, reason, skipped, created_at, cancelled_at FROM old_operations;
INSERT INTO operation_parts (operation_id, redelivery_id)
SELECT p.operation_id, p.redelivery_id FROM old_operation_parts p
JOIN resends r ON r.resend_id = p.redelivery_id AND r.batch_id IS NULL;
DROP TABLE old_operation_parts;
DROP TABLE old_operations;
