-- serves: 63
-- Makes the commit of its transaction return before the log is on disk, if that is wanted. A statement that joins it is its
-- own transaction, so it needs no further round trip for the setting. It returns one row in any case. A function of one
-- expression is part of the statement that calls it, so it costs no call.
CREATE FUNCTION commit_without_flush(wanted boolean) RETURNS text LANGUAGE sql
RETURN CASE WHEN wanted THEN set_config('synchronous_commit', 'off', true) END;
