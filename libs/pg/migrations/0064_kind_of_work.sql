-- serves: 63
-- What is to be done next for a placement follows from its state and its attempts, and is said once. The names are those of
-- `store::work::Kind`. A function of one expression is part of the statement that calls it, so it costs no call.
CREATE FUNCTION kind_of_work(state text, attempt integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE state
    WHEN 'accepted' THEN CASE WHEN attempt = 0 THEN 'buy' ELSE 'buy_again' END
    WHEN 'placing' THEN 'find'
    ELSE 'collect'
END;
