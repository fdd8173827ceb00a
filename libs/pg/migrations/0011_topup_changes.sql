-- serves: 1
-- The changes of topups that have no time elsewhere which an index of their partner has in order: that they failed, and that
-- their eSIMs were extended or given back. A topup that is ready has the time of its webhook. So a partner walks all changes of a day in
-- the order of their times. Triggers note them, of whichever program and role the cause is. There are no references, because
-- a row is deleted with its topup. What changed before this migration is not noted.
CREATE TABLE topup_changes (
    partner_id uuid NOT NULL,
    -- The begin of the transaction that made it. A failure counts from when its order can no longer be answered with 422.
    at timestamptz NOT NULL,
    topup_id text COLLATE "C" NOT NULL,
    change text COLLATE "C" NOT NULL,
    CONSTRAINT topup_changes_pkey PRIMARY KEY (partner_id, at, topup_id, change),
    CONSTRAINT topup_changes_bounds CHECK (
        at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
        AND greatest(octet_length(topup_id), octet_length(change)) <= 100000)
);
CREATE INDEX topup_changes_topup ON topup_changes (topup_id);
CREATE POLICY all_rows ON topup_changes USING (true) WITH CHECK (true);

-- Notes a change of a topup for its partner. Nobody is told of a topup whose order was answered with 422.
CREATE FUNCTION note_topup_change(of_topup text, change text, changed_at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO topup_changes (partner_id, at, topup_id, change)
    SELECT o.partner_id, greatest(changed_at, o.answer_by), of_topup, note_topup_change.change
    FROM topups t JOIN placements p ON p.placement_id = t.placement_id JOIN orders o ON o.order_id = p.order_id
    WHERE t.topup_id = of_topup AND (o.refused_at IS NULL OR o.cancelled_at IS NOT NULL)
    ON CONFLICT DO NOTHING;
END
$$;
REVOKE EXECUTE ON FUNCTION note_topup_change(text, text, timestamptz) FROM PUBLIC;

CREATE FUNCTION topup_failure_noted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM note_topup_change(NEW.topup_id, 'failed', now());
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_failure_noted AFTER UPDATE OF state ON topups FOR EACH ROW
    WHEN (NEW.state = 'failed' AND OLD.state <> 'failed') EXECUTE FUNCTION topup_failure_noted();

CREATE FUNCTION topup_return_noted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM note_topup_change(NEW.topup_id, 'returned', now());
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_return_noted AFTER UPDATE OF returned_at ON esims FOR EACH ROW
    WHEN (NEW.returned_at IS NOT NULL AND OLD.returned_at IS NULL) EXECUTE FUNCTION topup_return_noted();

CREATE FUNCTION topup_extension_noted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM note_topup_change(NEW.topup_id, 'extended', now());
    RETURN NULL;
END
$$;
CREATE TRIGGER topup_extension_noted AFTER UPDATE OF state ON extensions FOR EACH ROW
    WHEN (NEW.state = 'added' AND OLD.state <> 'added') EXECUTE FUNCTION topup_extension_noted();
