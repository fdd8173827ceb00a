-- serves: 1
-- Puts one of its providers first for an option, if it is still routed as `seen` says: its pairs of a provider and the
-- option's name there, in their order. What it costs is known of the first one only. It returns false, and changes nothing, if
-- it is routed in another way by now, or is not sold there. So the role of the console can choose among the providers that an
-- option has, and cannot change what is bought there.
CREATE FUNCTION route_option(of_option uuid, at_provider text, seen jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE options o
    SET provider = first.pair->>'provider', provider_option_id = first.pair->>'provider_option_id',
        alternatives = (SELECT jsonb_agg(one ORDER BY n)
                        FROM jsonb_array_elements(seen) WITH ORDINALITY AS pairs (one, n)
                        WHERE one->>'provider' <> at_provider),
        cost = NULL, cost_currency = NULL
    FROM (SELECT one AS pair FROM jsonb_array_elements(seen) one WHERE one->>'provider' = at_provider LIMIT 1) first
    WHERE o.option_id = of_option AND o.provider <> at_provider
      AND seen = jsonb_build_object('provider', o.provider, 'provider_option_id', o.provider_option_id) || o.alternatives;
    RETURN FOUND;
END
$$;
REVOKE EXECUTE ON FUNCTION route_option(uuid, text, jsonb) FROM PUBLIC;
