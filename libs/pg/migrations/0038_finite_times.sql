-- no-transaction
-- serves: 24
-- The bounds of 0026 and 0027 are NOT VALID: they hold for every new or changed row, and say nothing about rows that stood
-- there before. A row with an infinite time still ended each program that read it, and a row that breaks its bounds cannot be
-- changed any more. So this carries such rows over, a table at a time, and changes no others:
--   * A time that programs cannot hold becomes the time of this migration. That of a sweep becomes the day before, so that the
--     sweep finds again what it has passed too early.
--   * A text that is too long keeps its first 25,000 characters, which have at most 100,000 bytes.
--   * An hour of figures has no such time that would mean anything, so its row goes.
DO $$
DECLARE
    least constant timestamptz := '0001-01-01 00:00:00+00';
    most constant timestamptz := '9999-12-31 00:00:00+00';
    bounded oid;
    sets text;
    wrong text;
BEGIN
    IF to_regclass('hourly') IS NOT NULL THEN
        EXECUTE 'DELETE FROM hourly WHERE hour < $1 OR hour > $2' USING least, most;
    END IF;
    FOR bounded IN
        SELECT DISTINCT conrelid FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
        WHERE c.contype = 'c' AND c.conname = t.relname || '_bounds' AND t.relnamespace = current_schema()::regnamespace
    LOOP
        WITH columns AS (
            SELECT attname, atttypid = 'timestamptz'::regtype AS is_time,
                   -- The three columns in which one infinity is a mark.
                   CASE (SELECT relname FROM pg_class WHERE oid = bounded) || '.' || attname
                       WHEN 'work.at' THEN '-infinity' WHEN 'retention.up_to' THEN '-infinity' WHEN 'walks.up_to' THEN '-infinity'
                       WHEN 'endpoints.blocked_until' THEN 'infinity' WHEN 'partner_endpoints.blocked_until' THEN 'infinity' END AS mark,
                   CASE (SELECT relname FROM pg_class WHERE oid = bounded)
                       WHEN 'sweeps' THEN '1 day' WHEN 'walks' THEN '1 day' ELSE '0' END AS before
            FROM pg_attribute
            WHERE attrelid = bounded AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
              AND atttypid IN ('timestamptz'::regtype, 'text'::regtype)
        ), judged AS (
            SELECT attname, is_time, before,
                   CASE WHEN is_time
                       THEN format('(%1$I < %2$L OR %1$I > %3$L) AND %1$I IS DISTINCT FROM %4$L', attname, least, most, mark)
                       ELSE format('octet_length(%I) > 100000', attname) END AS is_wrong
            FROM columns
        )
        SELECT string_agg(format('%1$I = CASE WHEN %2$s THEN %3$s ELSE %1$I END', attname, is_wrong,
                                 CASE WHEN is_time THEN format('now() - interval %L', before)
                                      ELSE format('left(%I, 25000)', attname) END), ', '),
               string_agg(is_wrong, ' OR ')
        INTO sets, wrong FROM judged;
        CONTINUE WHEN sets IS NULL;
        EXECUTE format('UPDATE %s SET %s WHERE %s', bounded::regclass, sets, wrong);
        COMMIT;
    END LOOP;
END
$$;
