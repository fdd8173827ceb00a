-- serves: 1
-- contract: options_bounds comes back in the same transaction, wider by the new columns, which no older program writes.
--
-- What a shop tells about an option beside its price (`accounts::facts`). `told` is what its first provider tells, and is written
-- by a pull of its catalogue; `facts` is what a file of the operator sets by hand, which counts where both say something. Null if
-- nobody says anything, as of all options of before.
ALTER TABLE options ADD COLUMN told jsonb;
ALTER TABLE options ADD COLUMN facts jsonb;
-- When partners could see something new of it for the last time. The rows of before get a time by migration 21, because newer
-- minor versions of PostgreSQL add no column with a default to a table whose row is the argument of a function.
ALTER TABLE options ADD COLUMN updated_at timestamptz;
ALTER TABLE options ALTER COLUMN updated_at SET DEFAULT now();
-- The networks of both, by which partners find options, because reading all of both would take too long: each name in lower case
-- by itself, and behind its country and a line break, which no name has.
ALTER TABLE options ADD COLUMN networks text[];
ALTER TABLE options DROP CONSTRAINT options_bounds;
ALTER TABLE options ADD CONSTRAINT options_bounds CHECK (
    updated_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00'
    AND greatest(octet_length(name), octet_length(provider), octet_length(provider_option_id), octet_length(environment),
                 octet_length(cost_currency), pg_column_size(details), pg_column_size(alternatives), pg_column_size(countries),
                 pg_column_size(told), pg_column_size(facts), pg_column_size(networks)) <= 100000) NOT VALID;

-- Writes the two columns that follow from the others. An insert that meets the option and changes nothing has its time, so that
-- whoever compares all columns finds no difference.
-- The planner takes the lists for long ones, and would compile the statement each time.
CREATE FUNCTION option_updated() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp SET jit = off AS $$
BEGIN
    NEW.networks = (SELECT array_agg(DISTINCT lower(concat_ws(E'\n', of, name #>> '{}')))
                    FROM jsonb_path_query(coalesce(NEW.facts->'coverage', NEW.told->'coverage'), '$[*]') covered,
                         jsonb_path_query(covered, '$.networks[*].name') name,
                         unnest(ARRAY[NULL, covered->>'country']) of);
    NEW.updated_at = clock_timestamp();
    IF TG_OP = 'INSERT' THEN
        NEW.updated_at = coalesce((SELECT o.updated_at FROM options o WHERE o.option_id = NEW.option_id), NEW.updated_at);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER option_updated BEFORE INSERT OR UPDATE ON options FOR EACH ROW EXECUTE FUNCTION option_updated();

-- As in 0005; what the provider tells is known of the first one only, too.
CREATE OR REPLACE FUNCTION route_option(of_option uuid, at_provider text, seen jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    UPDATE options o
    SET provider = first.pair->>'provider', provider_option_id = first.pair->>'provider_option_id',
        alternatives = (SELECT jsonb_agg(one ORDER BY n)
                        FROM jsonb_array_elements(seen) WITH ORDINALITY AS pairs (one, n)
                        WHERE one->>'provider' <> at_provider),
        cost = NULL, cost_currency = NULL, told = NULL
    FROM (SELECT one AS pair FROM jsonb_array_elements(seen) one WHERE one->>'provider' = at_provider LIMIT 1) first
    WHERE o.option_id = of_option AND o.provider <> at_provider
      AND seen = jsonb_build_object('provider', o.provider, 'provider_option_id', o.provider_option_id) || o.alternatives;
    RETURN FOUND;
END
$$;
