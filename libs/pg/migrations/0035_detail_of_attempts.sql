-- serves: 24
-- What was wrong with an attempt that got no readable response, beside its class: for example that the certificate of the
-- endpoint has expired. The text is ours and bounded; nothing decides by it. Programs of older schemas do not write it.
ALTER TABLE delivery_attempts ADD COLUMN detail text,
    ADD CONSTRAINT delivery_attempts_detail_bounds CHECK (octet_length(detail) <= 100000) NOT VALID;
