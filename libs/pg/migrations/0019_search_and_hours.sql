-- serves: 9
-- Finding an order by the provider's own id of its purchase, and hourly figures (docs/decisions/0034-operations.md).
-- Programs of schema 9 know nothing of either. The hours in which only such programs swept have no figures.

-- The provider's ids of purchases, which `placements.provider_reference` (0014) holds without an index: an index there would
-- make each settlement write a new version of the row into all indexes. Only providers that name purchases by ids of their
-- own have rows here. No release has written a reference yet, so there is nothing to copy.
CREATE TABLE provider_references (
    reference text NOT NULL,
    placement_id uuid NOT NULL,
    PRIMARY KEY (reference, placement_id)
);

-- The function has the owner's rights, so that no stage can change the table in another way.
CREATE FUNCTION note_provider_reference() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.provider_reference IS NOT NULL THEN
        DELETE FROM provider_references
        WHERE reference = OLD.provider_reference AND placement_id = OLD.placement_id;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.provider_reference IS NOT NULL THEN
        INSERT INTO provider_references VALUES (NEW.provider_reference, NEW.placement_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
-- The conditions are evaluated without a call, so that the placements of other providers pay nothing. A restored archive
-- inserts placements with their references.
CREATE TRIGGER placement_inserted AFTER INSERT ON placements FOR EACH ROW
    WHEN (NEW.provider_reference IS NOT NULL) EXECUTE FUNCTION note_provider_reference();
CREATE TRIGGER placement_named AFTER UPDATE OF provider_reference ON placements FOR EACH ROW
    WHEN (NEW.provider_reference IS DISTINCT FROM OLD.provider_reference) EXECUTE FUNCTION note_provider_reference();
CREATE TRIGGER placement_deleted AFTER DELETE ON placements FOR EACH ROW
    WHEN (OLD.provider_reference IS NOT NULL) EXECUTE FUNCTION note_provider_reference();

-- What came in each hour, and what had become of it soon after. The sweep of each stage adds a range of time once, when no
-- row of it can appear any more; see `store::operator::hourly`.
CREATE TABLE hourly (
    hour timestamptz NOT NULL,
    -- `placements` or `deliveries`.
    stage text NOT NULL,
    -- Rows that were created in the hour.
    created bigint NOT NULL,
    -- Those of them that were bought or delivered when the sweep passed, some seconds later.
    done bigint NOT NULL,
    -- Those that had failed, were parked or were exhausted by then.
    failed bigint NOT NULL,
    PRIMARY KEY (hour, stage)
);
