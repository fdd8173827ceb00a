-- serves: 14
-- The operator's description of an option for partners, beside its name.
ALTER TABLE options ADD COLUMN details jsonb NOT NULL DEFAULT '{}';
ALTER TABLE options ADD CONSTRAINT options_details CHECK (jsonb_typeof(details) = 'object') NOT VALID;
