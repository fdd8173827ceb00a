-- no-transaction
-- serves: 1
-- Each option of before migration 19 gets the time of the upgrade, because partners can see its facts from then on. In batches, so
-- that no program waits for the rows of a whole catalogue; what is cut off goes on where it stopped. No trigger hears of it: what
-- partners can order is as it was, so versions stay, and nobody is told.
DO $$
DECLARE
    done boolean = false;
BEGIN
    WHILE NOT done LOOP
        ALTER TABLE options DISABLE TRIGGER USER;
        UPDATE options SET updated_at = now()
        WHERE option_id IN (SELECT option_id FROM options WHERE updated_at IS NULL LIMIT 500);
        done = NOT FOUND;
        ALTER TABLE options ENABLE TRIGGER USER;
        COMMIT;
    END LOOP;
END
$$;
