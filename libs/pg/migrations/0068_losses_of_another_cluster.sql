-- serves: 63
-- A loss of a later timeline than the server's is one of another cluster. A dump that was loaded into a new server brings such
-- rows, because its timelines begin at 1 again, and `commits_lost` would take the first real loss of that timeline for one that
-- was acted on, and let the buying go on. So they are deleted whenever pulses are, which every process does when it starts. What
-- such a loss did stands in `operator_actions`, and the breakers that it opened stay open.
CREATE FUNCTION forget_losses_of_another_cluster() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    DELETE FROM commit_losses
    WHERE timeline > ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    RETURN NULL;
END
$$;
CREATE TRIGGER pulses_deleted AFTER DELETE ON pulses FOR EACH STATEMENT EXECUTE FUNCTION forget_losses_of_another_cluster();
