-- serves: 24
-- contract: ingress loses the right to mark a channel for notices as verified. While the programs of two versions run side
-- by side, an older ingress answers POST /notices/verify with a 500, and the partner repeats the request. Nothing else uses
-- this right.
--
-- Verifying a channel for notices is a step of the database: whoever may execute the function still needs the code, so that
-- the role of ingress alone cannot have notices sent to a stranger.

-- Verifies the channel of a partner with a code, given as letters and digits in capitals. `outcome` is `verified`, `before`
-- (it was verified before), `wrong`, `ended` (no code is valid now) or `none` (the partner has no channel); `tries_left` is how
-- many further wrong codes are taken.
--
-- The digest is that of `signing::code`: HMAC-SHA256 of a prefix and the id of the channel under the code.
CREATE FUNCTION verify_channel(of_partner uuid, code text, OUT outcome text, OUT tries_left integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    -- How many wrong codes are taken before a new one has to be sent.
    most constant integer := 5;
    channel further_endpoints;
    key bytea := convert_to(code, 'UTF8');
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    -- The lock keeps two requests at the same time from counting one try.
    SELECT * INTO channel FROM further_endpoints WHERE partner_id = of_partner AND purpose = 'notices' FOR UPDATE;
    tries_left := 0;
    IF NOT FOUND THEN
        outcome := 'none';
        RETURN;
    END IF;
    IF channel.verified_at IS NOT NULL THEN
        outcome := 'before';
        RETURN;
    END IF;
    IF channel.code_digest IS NULL OR channel.code_tries >= most OR coalesce(channel.code_until <= now(), true) THEN
        outcome := 'ended';
        RETURN;
    END IF;
    -- A longer key would be hashed first. Codes are much shorter, so it is wrong anyway.
    IF length(key) BETWEEN 1 AND 64 THEN
        FOR i IN 0 .. length(key) - 1 LOOP
            inner_pad := set_byte(inner_pad, i, get_byte(inner_pad, i) # get_byte(key, i));
            outer_pad := set_byte(outer_pad, i, get_byte(outer_pad, i) # get_byte(key, i));
        END LOOP;
        IF channel.code_digest = sha256(outer_pad || sha256(inner_pad || convert_to(E'notice code\n', 'UTF8')
                                                                        || uuid_send(channel.endpoint_id))) THEN
            UPDATE further_endpoints SET verified_at = now(), code_digest = NULL WHERE endpoint_id = channel.endpoint_id;
            outcome := 'verified';
            RETURN;
        END IF;
    END IF;
    UPDATE further_endpoints SET code_tries = code_tries + 1 WHERE endpoint_id = channel.endpoint_id;
    outcome := 'wrong';
    tries_left := most - channel.code_tries - 1;
END
$$;
REVOKE EXECUTE ON FUNCTION verify_channel(uuid, text) FROM PUBLIC;

-- A code proves the address that it was sent to. So a channel whose address changes is not verified, and the code that was
-- sent to the old one is void, whoever changes it.
CREATE FUNCTION channel_moved() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    NEW.verified_at := NULL;
    NEW.code_digest := NULL;
    RETURN NEW;
END
$$;
CREATE TRIGGER channel_moved BEFORE UPDATE OF url ON further_endpoints
    FOR EACH ROW WHEN (OLD.purpose = 'notices' AND NEW.url IS DISTINCT FROM OLD.url) EXECUTE FUNCTION channel_moved();
